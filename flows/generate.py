"""The job itself: every prompt in the promoted order, resumable, and the outputs in the file's order again.

The flow runs orderproof.generate.story with Prefect tasks as its steps: validate → take or make the order → generate →
restore the file's order → page, picture and MLflow → record in DVC. A run that was killed is resumed by the next one.

    python -m flows.generate six-domains
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from orderproof.generate.story import generate
from orderproof.job.params import load_job
from orderproof.prompts.stream import LINGER_S, Stream
from orderproof.runs.run import Run
from tasks.artifacts import publish_run
from tasks.generate import STEPS
from tasks.terminal import run_as_command


@flow(name="generate-outputs", flow_run_name="generate {job}", persist_result=False)
def generate_outputs(
    job: str,
    params: str = "params.yaml",
    restart: bool = False,
    prompts: str | None = None,
    follow: float | None = None,
    linger: float = LINGER_S,
    output: str | None = None,
) -> Run:
    """Generate for every prompt of a job, in the order that was promoted for it.

    Args:
        prompts: a stream of JSON lines instead of the job's file: `-` for standard input, or a path.
        follow: `prompts` is a file that grows, and ends when nothing was added for so many seconds.
        linger: seconds that an incomplete window waits for more prompts while the engine has less to do than it could.
        output: results as JSON lines during the run: `-` for standard output, or a path.
    """
    loaded = load_job(Path(params), job)
    stream = None if prompts is None else Stream(prompts, follow, linger)
    return publish_run(loaded, generate(loaded, restart=restart, stream=stream, output=output, run_with=STEPS))


if __name__ == "__main__":
    run_as_command(generate_outputs)
