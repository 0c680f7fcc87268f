"""Which experts do this job's prompts use? Listen to the model's routers on a sample, and say what batches touch.

In: the name of a job in params.yaml. Out: data/<job>/routes.parquet and, fitted on it, predictor.npz and
step_costs.json; a `RoutingReport`, and its table and picture under reports/routing/<job>/. Decides nothing; works with
and without a Prefect server.

    orderproof capture six-domains
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.accelerator import accelerator
from flows.measure import validate
from flows.reporting import progress_bar, run_logger
from flows.server import end_server_with_this_process
from orderproof.capture import calibration
from orderproof.capture import report as reports
from orderproof.capture.capture import Captured, Sample, capture, check_moe, check_no_adapters
from orderproof.capture.report import RoutingReport
from orderproof.capture.sample import groups_of, sample_size, stratified
from orderproof.capture.statistics import routing_table
from orderproof.capture.step_cost_store import write_costs
from orderproof.engines.protocol import Engine
from orderproof.engines.routing_engine import RoutingEngine
from orderproof.engines.start import start_engine
from orderproof.job.hashing import md5_of
from orderproof.job.model import ModelFacts, read_model
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.orders.view import view_of
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.routing.errors import RoutingError
from orderproof.routing.routes import open_routes
from orderproof.signals import predictor_file
from orderproof.signals.registry import SignalError
from orderproof.signals.served_model import ServedModel


@flow(name="capture-routes", flow_run_name="capture {job}", persist_result=False)
def capture_routes(
    job: str, params: str = "params.yaml", prompts: int | None = None, seed: int = 0, time_steps: bool = True
) -> RoutingReport:
    """Capture the routes of a sample of a job's prompts.

    Args:
        job: its name in params.yaml.
        params: path of params.yaml.
        prompts: how many to capture; None: as many as the table needs.
        seed: of the sample.
        time_steps: also start the job's own engine and fit what a step costs, which predictions of gain need.
    """
    end_server_with_this_process()
    this = load_job(Path(params), job)
    model = read_model(this.model_path, this.model)
    check_moe(model)
    check_no_adapters(this)
    sample = draw_sample(this, validate(this), prompts, seed)
    with accelerator():
        with start_routing_engine(this) as engine:
            captured = capture_sample(this, model, sample, engine)
        learn(this, sample, captured)
        if time_steps:
            with start_engine(one_replica(this)) as timed:
                calibrate(this, model, sample, captured, timed)
    return report(this, model, sample, captured)


def start_routing_engine(job: Job) -> RoutingEngine:
    """vLLM in a child process, with its routers listened to."""
    log = job.root / ".orderproof" / "logs" / f"{job.name}-routing.log"
    return RoutingEngine(job.engine, job.model_path, job.sampling, log)


@task(name="sample", task_run_name="draw the sample", cache_policy=NO_CACHE)
def draw_sample(job: Job, prompts: TokenizedPrompts, wanted: int | None, seed: int) -> Sample:
    """Prompts from all over the file."""
    size = wanted or sample_size(len(prompts), job.engine.max_num_seqs)
    places = stratified(len(prompts), size, seed)
    run_logger().info("%d of %d prompts are captured", len(places), len(prompts))
    return Sample(prompts.take(places), len(prompts), seed, md5_of(job.prompts_path))


@task(name="capture", task_run_name="capture the sample's routes", cache_policy=NO_CACHE)
def capture_sample(job: Job, model: ModelFacts, sample: Sample, engine: RoutingEngine) -> Captured:
    """One pass, untimed."""
    with progress_bar() as bar:
        row = bar.add_task("capturing", total=len(sample.prompts), rate="")
        return capture(job, model, sample, engine, lambda done, total: bar.update(row, completed=done))


@task(name="learn", task_run_name="learn to foretell routes", cache_policy=NO_CACHE)
def learn(job: Job, sample: Sample, captured: Captured) -> None:
    """A predictor beside the routes; where none can be fitted, the signals that need it will say so."""
    try:
        record = predictor_file.fit_and_write(view_of(sample.prompts), captured.path, ServedModel.of_job(job))
    except SignalError as error:
        run_logger().warning("the signals that rest on routes cannot be taken for this job: %s", error)
    else:
        run_logger().info(
            "experts are foretold from words with a held-out R² of %.2f in decode and %.2f in prefill",
            record.decode.r2,
            record.prefill.r2,
        )


def one_replica(job: Job) -> Job:
    """A step costs the same on each of them."""
    return job.model_copy(update={"engine": job.engine.model_copy(update={"replicas": 1, "devices": None})})


@task(name="calibrate", task_run_name="time some steps", cache_policy=NO_CACHE)
def calibrate(job: Job, model: ModelFacts, sample: Sample, captured: Captured, engine: Engine) -> None:
    """What a step costs, beside the routes; where it cannot be told, a plan will say so."""
    run_logger().info("timing a few passes of captured prompts on the job's own engine")
    try:
        with open_routes(captured.path, model, sample.dataset_md5) as routes:
            moe_bytes = model.moe.bytes_per_expert if model.moe else None
            known = write_costs(job, model, calibration.calibrate(engine, job, sample.prompts, routes, moe_bytes))
    except RoutingError as error:
        earlier = "; what an earlier capture found stays" if job.paths.step_costs.exists() else ""
        run_logger().warning("what a step costs is not known by this capture%s: %s", earlier, error)
        return
    run_logger().info("an expert costs %.1f µs (R² %.2f)", 1000 * known.expert_ms, known.r_squared)


@task(name="report", task_run_name="tabulate and draw", cache_policy=NO_CACHE)
def report(job: Job, model: ModelFacts, sample: Sample, captured: Captured) -> RoutingReport:
    """The study's table for these prompts, from the file that was written."""
    kind, groups = groups_of(sample.prompts, job.order, ServedModel.of_job(job))
    with open_routes(captured.path, model, sample.dataset_md5) as routes:
        record = routes.record
        shape = (record.layers, record.experts, record.top_k)
        table = routing_table(routes, dict(zip(sample.prompts.ids, groups, strict=True)), kind, shape, sample.seed)
    made = RoutingReport(job.name, captured, table, model.toy, reports.reports_dir(job))
    reports.write_report(made)
    return made
