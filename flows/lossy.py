"""What would a lossy routing gain, and what would it change? Measured beside the job's own, and never promoted.

In: the name of a job in params.yaml. Out: a `LossyReport`, and its page under reports/lossy/<job>/.

    orderproof lossy six-domains --k0 2
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from orderproof.flows.accelerator import accelerator
from orderproof.flows.capture import start_routing_engine
from orderproof.flows.measure import validate
from orderproof.flows.reporting import progress_bar, run_logger
from orderproof.flows.server import end_server_with_this_process
from orderproof.tasks import lossy
from orderproof.tasks.engines.routing import RoutingEngine
from orderproof.tasks.jobs import Job, load_job
from orderproof.tasks.lossy import LossyReport
from orderproof.tasks.models import ModelFacts, read_model
from orderproof.tasks.prompts import TokenizedPrompts, dataset_md5
from orderproof.tasks.routing.capture import refuse_adapters


@flow(name="measure-lossy", flow_run_name="measure lossy {job}", persist_result=False)
def measure_lossy(job: str, params: str = "params.yaml", k0: int = 2, blocks: int = 5) -> LossyReport:
    """Compare shuffled and sorted, each with the model's own routing and with Opportunistic Expert Activation.

    Args:
        job: its name in params.yaml.
        params: path of params.yaml.
        k0: how many of its own experts a token keeps for sure.
        blocks: passes of each arm.
    """
    end_server_with_this_process()
    this = load_job(Path(params), job)
    model = read_model(this.model_path, this.model)
    lossy.refuse_k0(model, k0)
    refuse_adapters(this)
    prompts = validate(this)
    with accelerator(), start_routing_engine(this) as engine:
        report = compare(this, model, prompts, engine, k0, blocks)
    run_logger().info("page: %s", lossy.write_page(this, report))
    return report


@task(name="compare", task_run_name="measure the arms side by side", cache_policy=NO_CACHE)
def compare(
    job: Job, model: ModelFacts, prompts: TokenizedPrompts, engine: RoutingEngine, k0: int, blocks: int
) -> LossyReport:
    """Blocks of four passes."""
    with progress_bar() as bar:
        row = bar.add_task("lossy", total=blocks * len(lossy.ARMS), rate="")

        def progress(arm: str, done: int, total: int) -> None:
            bar.update(row, completed=done, description=arm)

        md5 = dataset_md5(job.prompts_path)
        return lossy.compare_lossy(job, model, prompts, md5, engine, k0, blocks, progress)
