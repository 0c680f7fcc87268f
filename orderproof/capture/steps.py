"""The steps of a capture, one function each. story.py puts them together; tasks/capture.py makes them Prefect tasks."""

from __future__ import annotations

import datetime
import logging
from pathlib import Path

from orderproof.capture import calibration
from orderproof.capture import capture as captures
from orderproof.capture.capture import Captured, Sample
from orderproof.capture.report import capture_run, draw_capture
from orderproof.capture.sample import groups_of, sample_size, stratified
from orderproof.capture.statistics import routing_table
from orderproof.capture.step_cost_store import write_costs
from orderproof.engines.protocol import Engine
from orderproof.engines.routing_engine import RoutingEngine
from orderproof.job.model import ModelFacts
from orderproof.job.spec import Job
from orderproof.orders.view import view_of
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.routing.errors import RoutingError
from orderproof.routing.routes import open_routes
from orderproof.runs import recorder
from orderproof.runs.progress import NewProgress
from orderproof.runs.recorder import Presentation
from orderproof.runs.run import Run
from orderproof.signals import predictor_file
from orderproof.signals.registry import SignalError
from orderproof.signals.served_model import ServedModel
from orderproof.validation.validate import validate_prompts_and_sampling

logger = logging.getLogger(__name__)


def validate(job: Job) -> TokenizedPrompts:
    """Check the prompts with Great Expectations, before anything is spent."""
    return validate_prompts_and_sampling(job, job.root / "reports" / job.name / "validation")


def draw_sample(job: Job, prompts: TokenizedPrompts, dataset_md5: str, wanted: int | None, seed: int) -> Sample:
    """Draw prompts from all parts of the file."""
    size = wanted or sample_size(len(prompts), job.engine.max_num_seqs)
    places = stratified(len(prompts), size, seed)
    logger.info("%d of %d prompts are captured", len(places), len(prompts))
    return Sample(prompts.take(places), len(prompts), seed, dataset_md5)


def capture(job: Job, model: ModelFacts, sample: Sample, engine: RoutingEngine, new_progress: NewProgress) -> Captured:
    """Record the experts that each token of the sample chooses, in one untimed pass."""
    with new_progress(job.name, len(sample.prompts), "prompts captured") as progress:
        return captures.capture(job, model, sample, engine, lambda done, _: progress.update(done))


def learn(job: Job, sample: Sample, captured: Captured) -> None:
    """Fit a predictor beside the routes; where none can be fitted, the signals that need it report that."""
    try:
        record = predictor_file.fit_and_write(view_of(sample.prompts), captured.path, ServedModel.of_job(job))
    except SignalError as error:
        logger.warning("the signals that need routes cannot be used for this job: %s", error)
    else:
        decode, prefill = record.decode.r2, record.prefill.r2
        logger.info("predicted from the prompt, held-out R² is %.2f in decode and %.2f in prefill", decode, prefill)


def calibrate(job: Job, model: ModelFacts, sample: Sample, captured: Captured, engine: Engine) -> None:
    """Fit what a step costs, beside the routes; where it cannot be fitted, a plan reports that."""
    logger.info("timing a few passes of captured prompts on the job's own engine")
    try:
        with open_routes(captured.path, model, sample.dataset_md5) as routes:
            moe_bytes = model.moe.bytes_per_expert if model.moe else None
            known = write_costs(job, model, calibration.calibrate(engine, job, sample.prompts, routes, moe_bytes))
    except RoutingError as error:
        earlier = "; the costs of an earlier capture stay" if job.paths.step_costs.exists() else ""
        logger.warning("this capture could not fit what a step costs%s: %s", earlier, error)
        return
    logger.info("an expert costs %.1f µs per step (R² %.2f)", 1000 * known.expert_ms, known.r_squared)


def report(
    job: Job,
    model: ModelFacts,
    sample: Sample,
    captured: Captured,
    started: datetime.datetime,
    prefect_run: str | None,
) -> Run:
    """Tabulate the routes, and keep the run with its picture and page."""
    kind, groups = groups_of(sample.prompts, job.order, ServedModel.of_job(job))
    with open_routes(captured.path, model, sample.dataset_md5) as routes:
        record = routes.record
        shape = (record.layers, record.experts, record.top_k)
        table = routing_table(routes, dict(zip(sample.prompts.ids, groups, strict=True)), kind, shape, sample.seed)

    def draw(folder: Path) -> None:
        draw_capture(job.name, captured, table, model.toy, folder / "routing.png")

    run = recorder.with_origin(job, capture_run(job, model, sample, captured, table, started), prefect_run)
    return recorder.keep(job, run, Presentation(draw=draw))
