"""Which experts do this job's prompts use? Record the routers' decisions on a sample, and tabulate what batches read.

python -m flows.capture six-domains
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from orderproof.capture.story import capture
from orderproof.job.params import load_job
from orderproof.runs.run import Run
from tasks.artifacts import publish_run
from tasks.capture import STEPS
from tasks.terminal import run_as_command


@flow(name="capture-routes", flow_run_name="capture {job}", persist_result=False)
def capture_routes(
    job: str, params: str = "params.yaml", prompts: int | None = None, seed: int = 0, time_steps: bool = True
) -> Run:
    """Capture the routes of a sample of a job's prompts into data/<job>/routes.parquet."""
    loaded = load_job(Path(params), job)
    return publish_run(loaded, capture(loaded, prompts=prompts, seed=seed, time_steps=time_steps, run_with=STEPS))


if __name__ == "__main__":
    run_as_command(capture_routes)
