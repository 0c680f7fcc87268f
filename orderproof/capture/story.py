"""Which experts do this job's prompts use? Record the routers' decisions on a sample, and tabulate them."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from orderproof.capture import steps
from orderproof.capture.capture import Captured, Sample, check_moe, check_no_adapters
from orderproof.engines.accelerator_lock import hold_accelerator
from orderproof.engines.protocol import Engine
from orderproof.engines.routing_engine import RoutingEngine
from orderproof.engines.start import start_engine, start_routing_engine
from orderproof.job.model import ModelFacts
from orderproof.job.spec import Job
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.runs.inputs import take_inputs
from orderproof.runs.progress import NewProgress, TerminalProgress
from orderproof.runs.run import Run


@dataclass(frozen=True)
class Steps:
    """The steps of a capture. A flow puts Prefect tasks in their places."""

    validate: Callable[[Job], TokenizedPrompts] = steps.validate
    draw_sample: Callable[[Job, TokenizedPrompts, str, int | None, int], Sample] = steps.draw_sample
    capture: Callable[[Job, ModelFacts, Sample, RoutingEngine, NewProgress], Captured] = steps.capture
    learn: Callable[[Job, Sample, Captured], None] = steps.learn
    calibrate: Callable[[Job, ModelFacts, Sample, Captured, Engine], None] = steps.calibrate
    report: Callable[[Job, ModelFacts, Sample, Captured, datetime.datetime, str | None], Run] = steps.report
    accelerator: Callable[[], AbstractContextManager[None]] = hold_accelerator
    progress: NewProgress = TerminalProgress
    prefect_run: Callable[[], str | None] = lambda: None


def capture(
    job: Job, *, prompts: int | None = None, seed: int = 0, time_steps: bool = True, run_with: Steps | None = None
) -> Run:
    """Capture the routes of a sample of a job's prompts into data/<job>/routes.parquet.

    Args:
        prompts: how many to capture; None: as many as the table needs.
        seed: of the sample.
        time_steps: also start the job's own engine and fit what a step costs, which predictions of gain need.

    Raises:
        OrderproofError: the model is dense, or prompts, model or engine cannot be used. Earlier routes stay.
    """
    run_with, started = run_with or Steps(), datetime.datetime.now(datetime.UTC)
    inputs = take_inputs(job)
    check_moe(inputs.model)
    check_no_adapters(job)
    sample = run_with.draw_sample(job, run_with.validate(job), inputs.dataset_md5(job), prompts, seed)
    with run_with.accelerator():
        with start_routing_engine(job) as engine:
            captured = run_with.capture(job, inputs.model, sample, engine, run_with.progress)
        run_with.learn(job, sample, captured)
        if time_steps:
            with start_engine(_one_replica(job)) as timed:
                run_with.calibrate(job, inputs.model, sample, captured, timed)
    return run_with.report(job, inputs.model, sample, captured, started, run_with.prefect_run())


def _one_replica(job: Job) -> Job:
    """A step costs the same on each replica."""
    return job.model_copy(update={"engine": job.engine.model_copy(update={"replicas": 1, "devices": None})})
