"""The job itself: every prompt in the promoted order, resumable, and the outputs in the file's order again."""

from __future__ import annotations

import datetime
import importlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial

from orderproof.engines.accelerator_lock import hold_accelerator
from orderproof.engines.protocol import EngineInfo
from orderproof.engines.start import start_engine
from orderproof.generate import generation, steps, windowed_ordering
from orderproof.generate.checkpoint_folder import FOLDER
from orderproof.generate.delivery import Delivered
from orderproof.generate.generation import Batch, Generated, SuspectError
from orderproof.generate.lock import only_run
from orderproof.generate.output_lines import OutputLines, open_output
from orderproof.generate.record import generation_run
from orderproof.generate.select_order import WindowedOrder
from orderproof.job.spec import Job
from orderproof.orders.order import Order
from orderproof.prompts.source import PromptSource
from orderproof.prompts.stream import Stream
from orderproof.prompts.tokenization import Tokenizer
from orderproof.runs.inputs import Inputs, take_inputs
from orderproof.runs.mlflow_run import mark_failed_on_error
from orderproof.runs.progress import NewProgress, TerminalProgress
from orderproof.runs.recorder import with_origin
from orderproof.runs.run import Run
from orderproof.runs.run_store import new_id, write_run

USED_AFTERWARDS = (  # each takes a second or more to import, while the engine loads anyway
    "great_expectations.expectations",
    "great_expectations.render.renderer.page_renderer",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow.store.tracking.sqlalchemy_store",
)

MOST_STARTS = 16  # of engines in a run: enough to find a prompt that ends them among thousands

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Steps:
    """The steps of a generation. A flow puts Prefect tasks in their places."""

    validate: Callable[[Job], PromptSource] = steps.validate
    choose_order: Callable[[Job, PromptSource, Tokenizer, str], tuple[Order | WindowedOrder, str]] = steps.choose_order
    open_stream: Callable[[Job, Stream, bool], tuple[Batch, str]] = steps.open_stream
    generate: Callable[..., Generated] = steps.generate
    restore: Callable[[Batch], Delivered] = steps.restore
    report: Callable[[Job, Run], Run] = steps.report
    record: Callable[[Job, Run, Inputs | None], Run] = steps.record
    accelerator: Callable[[], AbstractContextManager[None]] = hold_accelerator
    progress: NewProgress = TerminalProgress
    prefect_run: Callable[[], str | None] = lambda: None


def generate(
    job: Job,
    *,
    restart: bool = False,
    stream: Stream | None = None,
    output: str | None = None,
    run_with: Steps | None = None,
) -> Run:
    """Generate for every prompt of a job, in the order that was promoted for it.

    Args:
        restart: begin anew; an unfinished run's results are moved aside, never deleted.
        stream: prompts that arrive one after another, instead of the job's file.
        output: results as JSON lines during the run: `-` for standard output, or a path.

    Raises:
        OrderproofError: prompts, model, engine or disk cannot be used; what was generated is kept.
    """
    run_with, started = run_with or Steps(), datetime.datetime.now(datetime.UTC)
    with ExitStack() as held:
        held.enter_context(only_run(job.data_dir, wait=job.generate.when_running == "wait", waiting=_log_waiting))
        inputs = None if stream else take_inputs(job)
        batch, reason = run_with.open_stream(job, stream, restart) if stream else open_batch(job, run_with, restart)
        held.enter_context(batch.source)
        held.enter_context(batch.checkpoint)  # closed first: a thread that still reads can then write nothing
        lines = None
        if output:
            sink = held.enter_context(open_output(output, *batch.source.files, job.prompts_path))
            lines = OutputLines(batch.checkpoint, sink)
        batch, generated, engine = generate_pending(batch, run_with, started, lines=lines)
        held.enter_context(batch.file)
        with mark_failed_on_error(job, "generate", new_id(started)):
            delivered = run_with.restore(batch)
            if stream:
                job = windowed_ordering.store_streamed_prompts(job, batch.file.path)
                batch = generation.with_job(batch, job)
            run = generation_run(batch, reason, generated, engine, delivered, started)
            run = with_origin(job, run, run_with.prefect_run())
            write_run(job, run)  # before all that follows, so that a crash there loses no figures
        batch.checkpoint.discard()
    return run_with.record(job, run_with.report(job, run), inputs)


def open_batch(job: Job, run_with: Steps, restart: bool) -> tuple[Batch, str]:
    """The batch of a job's own prompts: all are checked, and their order is known, before anything is spent.

    Only the tokenizer waits until the engine loads: it takes seconds, and the model's own is hardly ever broken alone.
    """
    source, tokenizer = run_with.validate(job), Tokenizer(job)
    order, reason = run_with.choose_order(job, source, tokenizer, FOLDER)
    return generation.begin(job, source, order, tokenizer, restart=restart), reason


def generate_pending(
    batch: Batch,
    run_with: Steps,
    started: datetime.datetime,
    *,
    lines: OutputLines | None = None,
    ready: Callable[[EngineInfo], None] | None = None,
    live: bool = True,
) -> tuple[Batch, Generated, EngineInfo | None]:
    """Start an engine for what is still to be sent; none where an earlier run finished everything.

    Args:
        ready: called with what the engine says about itself, before anything is sent.
        live: send figures to MLflow during the run.

    Returns:
        The batch with its whole order, which a stream and a windowed order have only now; what this run did; and the
        engine.
    """
    if batch.windowed:
        batch.tokenizer.load()  # windows are made of rendered prompts, the first one before an engine is there
    generated, info, starts = Generated(), None, 0
    while batch.unfinished:
        starts += 1
        with (
            run_with.accelerator(),
            start_engine(batch.job, batch.job.lossy_k0, partial(_while_engine_loads, batch)) as engine,
        ):
            info = engine.info
            if ready:
                ready(info)
            try:
                generated = run_with.generate(
                    batch, engine, run_with.progress, started, run_with.prefect_run(), lines, live
                )
                break
            except SuspectError as error:
                if starts == MOST_STARTS:
                    raise
                logger.warning("%s: starting another to find out which prompt is why", error)
                batch.checkpoint.count_resumed()
    return generation.complete(batch), generated, info


def _while_engine_loads(batch: Batch) -> None:
    """What takes seconds and needs no engine: the tokenizer, and the libraries of all that is done afterwards."""
    batch.tokenizer.load()
    for name in USED_AFTERWARDS:
        with suppress(Exception):  # whoever uses it reports what is wrong, and the outputs do not need all of them
            importlib.import_module(name)


def _log_waiting(holder: str) -> None:
    logger.info("%s generates for this job: waiting until it ends", holder)
