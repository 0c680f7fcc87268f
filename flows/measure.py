"""Is another order of this job's prompts worth it?

The flow runs orderproof.measure.story with Prefect tasks as its steps: validate → plan → warm up → block after block,
until a look gives the verdict → page, pictures and MLflow → promote or keep the order, record it in DVC. The run's page
in Prefect shows progress, a table of each block, and the verdict with a link to its page.

    python -m flows.measure six-domains
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from orderproof.job.params import load_job
from orderproof.measure.story import measure
from orderproof.runs.run import Run
from tasks.artifacts import publish_run
from tasks.measure import STEPS
from tasks.terminal import run_as_command


@flow(name="measure-order", flow_run_name="measure {job}", persist_result=False)
def measure_order(job: str, params: str = "params.yaml", aa: bool = False, only_if_changed: bool = False) -> Run:
    """Measure a job's candidate order against what the job does today; promote it if the evidence justifies it."""
    loaded = load_job(Path(params), job)
    return publish_run(loaded, measure(loaded, aa=aa, only_if_changed=only_if_changed, run_with=STEPS))


if __name__ == "__main__":
    run_as_command(measure_order)
