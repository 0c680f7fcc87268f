"""Does the job still give the outputs that it gave? All of it again, in the promoted order, beside its baseline.

python -m flows.reproduce six-domains
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from orderproof.job.params import load_job
from orderproof.reproduce.story import reproduce
from orderproof.runs.run import Run
from tasks.artifacts import publish_run
from tasks.reproduce import STEPS
from tasks.terminal import run_as_command


@flow(name="reproduce-outputs", flow_run_name="reproduce {job}", persist_result=False)
def reproduce_outputs(job: str, params: str = "params.yaml", restart: bool = False) -> Run:
    """Generate a job's outputs again and compare them with those that it has."""
    loaded = load_job(Path(params), job)
    return publish_run(loaded, reproduce(loaded, restart=restart, run_with=STEPS))


if __name__ == "__main__":
    run_as_command(reproduce_outputs)
