"""Does the job still give the same outputs? Generates all of them again and compares them with the baseline."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from orderproof.generate import generation
from orderproof.generate import story as generate_story
from orderproof.generate.generation import Batch
from orderproof.generate.lock import only_run
from orderproof.generate.story import generate_pending
from orderproof.job.spec import Job
from orderproof.prompts.source import PromptSource
from orderproof.prompts.tokenization import Tokenizer
from orderproof.reproduce import baseline_file, steps
from orderproof.reproduce.baseline_file import Baseline
from orderproof.reproduce.record import Reproduction, reproduction_run
from orderproof.runs.inputs import Inputs, take_inputs
from orderproof.runs.recorder import with_origin
from orderproof.runs.run import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Steps:
    """The steps of a reproduction. A flow replaces them by Prefect tasks."""

    generation: generate_story.Steps = field(default_factory=generate_story.Steps)
    find_baseline: Callable[[Job, PromptSource], Baseline] = steps.find_baseline
    compare: Callable[[Batch, Baseline], Reproduction] = steps.compare
    report: Callable[[Job, Run, Reproduction], Run] = steps.report
    record: Callable[[Job, Run, Reproduction, Inputs], Run] = steps.record


def reproduce(job: Job, *, restart: bool = False, run_with: Steps | None = None) -> Run:
    """Generate a job's outputs again and compare them with data/<job>/outputs.parquet, which is only read.

    Args:
        restart: start again; the results of an unfinished reproduction are moved aside, never deleted.

    Raises:
        OrderproofError: there is no baseline for these prompts, or an input cannot be used. Results so far are kept.
    """
    run_with, started = run_with or Steps(), datetime.datetime.now(datetime.UTC)
    generating = run_with.generation
    with ExitStack() as held:
        wait = job.generate.when_running == "wait"
        held.enter_context(only_run(job.data_dir, wait=wait, waiting=_log_waiting, lock_file=baseline_file.LOCK_FILE))
        inputs = take_inputs(job)
        source = held.enter_context(generating.validate(job))
        baseline = run_with.find_baseline(job, source)
        tokenizer = Tokenizer(job)
        order, reason = generating.choose_order(job, source, tokenizer, baseline_file.FOLDER)
        batch = generation.begin(job, source, order, tokenizer, restart=restart, folder=baseline_file.FOLDER)
        held.enter_context(batch.checkpoint)
        steps.log_changes(batch, baseline)
        ready = partial(steps.log_engine_changes, baseline)
        batch, generated, engine = generate_pending(batch, generating, started, ready=ready, live=False)
        compared = run_with.compare(batch, baseline)
        run = reproduction_run(batch, compared, reason, generated, engine, started)
        run = run_with.report(job, with_origin(job, run, generating.prefect_run()), compared)
        batch.checkpoint.discard()  # only now: without a record, the comparison is repeated from it
    return run_with.record(job, run, compared, inputs)


def _log_waiting(holder: str) -> None:
    logger.info("waiting: %s is reproducing this job", holder)
