"""What would a lossy routing gain, and what would it change? Measured beside the model's own, and never promoted.

python -m flows.lossy six-domains --k0 2
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from orderproof.job.params import load_job
from orderproof.lossy.story import compare_routings as compare
from orderproof.runs.run import Run
from tasks.artifacts import publish_run
from tasks.lossy import STEPS
from tasks.terminal import run_as_command


@flow(name="compare-routings", flow_run_name="compare routings {job}", persist_result=False)
def compare_routings(job: str, params: str = "params.yaml", k0: int = 2, blocks: int = 5) -> Run:
    """Compare shuffled and sorted, each with the model's own routing and with Opportunistic Expert Activation."""
    loaded = load_job(Path(params), job)
    return publish_run(loaded, compare(loaded, k0=k0, blocks=blocks, run_with=STEPS))


if __name__ == "__main__":
    run_as_command(compare_routings)
