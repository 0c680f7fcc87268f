"""What would a lossy routing gain, and what would it change? Measured beside the job's own, and never promoted.

In: the name of a job in params.yaml. Out: a `LossyReport`, and its page under reports/<job>/lossy/, which a person's
`accept_lossy` may rest on.

    orderproof lossy six-domains --k0 2
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.accelerator import accelerator
from flows.capture import start_routing_engine
from flows.measure import validate
from flows.reporting import progress_bar, run_logger
from flows.server import end_server_with_this_process
from orderproof.capture.capture import check_no_adapters
from orderproof.engines.routing_engine import RoutingEngine
from orderproof.job.model import ModelFacts, read_model
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.lossy.comparison import compare_lossy
from orderproof.lossy.order import order_to_compare
from orderproof.lossy.report import ARMS, LossyReport
from orderproof.lossy.routing import refuse_k0
from orderproof.orders.order import Order
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.runs import recording, route_artifacts


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
    refuse_k0(model, k0)
    check_no_adapters(this)
    inputs = recording.inputs_of(this)
    prompts = validate(this)
    order = choose_order(this, prompts, inputs.files[this.prompts])
    with accelerator(), start_routing_engine(this) as engine:
        report = compare(this, model, prompts, order, engine, k0, blocks)
    keep(this, report, inputs)
    return report


@task(name="order", task_run_name="take or make the order", cache_policy=NO_CACHE)
def choose_order(job: Job, prompts: TokenizedPrompts, md5: str) -> Order:
    """The promoted order, or the candidate's; what a clone lacks to make it is put back first."""
    route_artifacts.restore_routes(job)
    return order_to_compare(job, prompts, md5)


@task(name="compare", task_run_name="measure the arms side by side", cache_policy=NO_CACHE)
def compare(
    job: Job, model: ModelFacts, prompts: TokenizedPrompts, order: Order, engine: RoutingEngine, k0: int, blocks: int
) -> LossyReport:
    """Blocks of four passes."""
    with progress_bar() as bar:
        row = bar.add_task("lossy", total=blocks * len(ARMS), rate="")

        def progress(arm: str, done: int, total: int) -> None:
            bar.update(row, completed=done, description=arm)

        return compare_lossy(job, model, prompts, order, engine, k0, blocks, progress)


@task(name="keep", task_run_name="keep the evidence, record in DVC", cache_policy=NO_CACHE)
def keep(job: Job, report: LossyReport, inputs: recording.Inputs) -> None:
    """Page and figures beside the job's trials."""
    page, notes = recording.keep_lossy(job, report, inputs)
    run_logger().info("page: %s", page)
    for note in notes:
        run_logger().warning("%s", note)
