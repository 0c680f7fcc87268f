"""What does a lossy routing gain, and how does it change outputs? Measured next to the model's own, never promoted."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from orderproof.capture.capture import check_no_adapters
from orderproof.engines.accelerator_lock import hold_accelerator
from orderproof.engines.start import start_routing_engine
from orderproof.job.spec import Job
from orderproof.lossy import steps
from orderproof.lossy.report import LossyReport
from orderproof.lossy.routing import refuse_k0
from orderproof.orders.order import Order
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.runs.inputs import Inputs, take_inputs
from orderproof.runs.progress import NewProgress, TerminalProgress
from orderproof.runs.run import Run


@dataclass(frozen=True)
class Steps:
    """The steps of a lossy comparison. A flow replaces them by Prefect tasks."""

    validate: Callable[[Job], TokenizedPrompts] = steps.validate
    choose_order: Callable[[Job, TokenizedPrompts, str], Order] = steps.choose_order
    compare: Callable[..., LossyReport] = steps.compare
    report: Callable[[Job, LossyReport, Inputs, datetime.datetime, str | None], Run] = steps.report
    accelerator: Callable[[], AbstractContextManager[None]] = hold_accelerator
    progress: NewProgress = TerminalProgress
    prefect_run: Callable[[], str | None] = lambda: None


def compare_routings(job: Job, *, k0: int = 2, blocks: int = 5, run_with: Steps | None = None) -> Run:
    """Compare shuffled and sorted, each with the model's own routing and with Opportunistic Expert Activation.

    Args:
        k0: how many of its own experts a token always keeps.
        blocks: number of passes of each arm.

    Raises:
        OrderproofError: the model is dense, k0 is not valid for it, or prompts, model or engine cannot be used.
    """
    run_with, started = run_with or Steps(), datetime.datetime.now(datetime.UTC)
    inputs = take_inputs(job)
    refuse_k0(inputs.model, k0)
    check_no_adapters(job)
    prompts = run_with.validate(job)
    order = run_with.choose_order(job, prompts, inputs.dataset_md5(job))
    with run_with.accelerator(), start_routing_engine(job) as engine:
        compared = run_with.compare(job, inputs.model, prompts, order, engine, k0, blocks, run_with.progress)
    return run_with.report(job, compared, inputs, started, run_with.prefect_run())
