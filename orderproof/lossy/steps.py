"""The steps of a lossy comparison. story.py combines them; tasks/lossy.py makes them Prefect tasks."""

from __future__ import annotations

import datetime

from orderproof.engines.routing_engine import RoutingEngine
from orderproof.job.model import ModelFacts
from orderproof.job.spec import Job
from orderproof.lossy.comparison import compare_lossy
from orderproof.lossy.order import order_to_compare
from orderproof.lossy.report import ARMS, LossyReport, lossy_run
from orderproof.orders.order import Order
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.runs import recorder, route_artifacts
from orderproof.runs.inputs import Inputs, refuse_changed
from orderproof.runs.progress import NewProgress
from orderproof.runs.recorder import Presentation
from orderproof.runs.run import Run
from orderproof.validation.validate import validate_prompts_and_sampling


def validate(job: Job) -> TokenizedPrompts:
    """Check the prompts with Great Expectations before the engine starts."""
    return validate_prompts_and_sampling(job, job.root / "reports" / job.name / "validation")


def choose_order(job: Job, prompts: TokenizedPrompts, dataset_md5: str) -> Order:
    """The promoted order, or the candidate order. Missing captured routes are restored first."""
    route_artifacts.restore_routes(job)
    return order_to_compare(job, prompts, dataset_md5)


def compare(
    job: Job,
    model: ModelFacts,
    prompts: TokenizedPrompts,
    order: Order,
    engine: RoutingEngine,
    k0: int,
    blocks: int,
    new_progress: NewProgress,
) -> LossyReport:
    """Run blocks of four passes."""
    with new_progress(job.name, blocks * len(ARMS), "passes") as progress:
        return compare_lossy(
            job, model, prompts, order, engine, k0, blocks, lambda arm, done, _: progress.update(done, arm)
        )


def report(job: Job, compared: LossyReport, inputs: Inputs, started: datetime.datetime, prefect_run: str | None) -> Run:
    """Write the comparison as evidence, and record it in DVC with the job's trials.

    Raises:
        InputsChanged: prompts, model or parameters changed during the comparison. Nothing is written.
    """
    refuse_changed(job, inputs)
    run = recorder.with_origin(job, lossy_run(job, inputs.model, compared, started), prefect_run)
    run = recorder.keep(job, run, Presentation())
    return run.with_notes(*recorder.record_again(job, run.sentence))
