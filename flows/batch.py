"""The job itself: every prompt in the promoted order, resumable, and its outputs in the file's order.

In: the name of a job in params.yaml. Out: data/<job>/outputs.parquet, a `BatchRun`, and what MLflow, DVC and Prefect
hold of it. A run that was killed goes on where it was; works with and without a Prefect server.

    orderproof generate six-domains
    producer | orderproof generate six-domains --prompts - --output - | consumer
"""

from __future__ import annotations

import datetime
import importlib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from flows.accelerator import accelerator
from flows.batch_reporting import BatchReporter, announce_batch
from flows.reporting import flow_run_id
from flows.server import end_server_with_this_process
from orderproof.engines.protocol import Engine, EngineInfo
from orderproof.engines.start import start_engine
from orderproof.generate import checkpoint_folder, delivery, generation, select_order, windowed_ordering
from orderproof.generate import recording as batch_recording
from orderproof.generate.delivery import Delivered
from orderproof.generate.generation import Batch, Generated
from orderproof.generate.generation_record import run_name
from orderproof.generate.lock import only_run
from orderproof.generate.output_lines import OutputLines, open_output
from orderproof.generate.record import BatchRun, keep, record_of
from orderproof.generate.tracking import mark_failed_on_error
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.lossy.routing import routing_named
from orderproof.orders.order import Order
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.source import PromptSource
from orderproof.prompts.stream import LINGER_S, Stream
from orderproof.prompts.tokenization import Tokenizer
from orderproof.runs import recording

USED_AFTERWARDS = (  # each takes a second or more to import
    "great_expectations.expectations",
    "great_expectations.render.renderer.page_renderer",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow.store.tracking.sqlalchemy_store",
)


@flow(name="run-batch", flow_run_name="generate {job}", persist_result=False)
def run_batch(
    job: str,
    params: str = "params.yaml",
    restart: bool = False,
    prompts: str | None = None,
    follow: float | None = None,
    linger: float = LINGER_S,
    output: str | None = None,
) -> BatchRun:
    """Generate for every prompt of a job, in the order that was promoted for it.

    Args:
        job: its name in params.yaml.
        params: path of params.yaml.
        restart: begin anew; an unfinished run's results are moved aside, never deleted.
        prompts: a stream of JSON lines instead of the job's file: `-` for the standard input, or a path.
        follow: `prompts` is a file that grows, and ends when nothing was added for so many seconds.
        linger: seconds that an incomplete window waits for more prompts while the engine has less to do than it could.
        output: results as JSON lines while the job runs: `-` for the standard output, or a path.
    """
    end_server_with_this_process()
    this, started = load_job(Path(params), job), datetime.datetime.now(datetime.UTC)
    stream = None if prompts is None else Stream(prompts, follow, linger)
    with ExitStack() as held:
        held.enter_context(only_run(this.data_dir, wait=this.generate.when_running == "wait", waiting=_waiting))
        inputs = None if stream else recording.inputs_of(this)
        batch, why = begin_stream(this, stream, restart) if stream else begin(this, restart)
        held.enter_context(batch.source)
        held.enter_context(batch.checkpoint)  # closed first: a thread that still reads can then write nothing
        lines = (
            OutputLines(batch.checkpoint, held.enter_context(open_output(output, batch.source.path, this.prompts_path)))
            if output
            else None
        )
        batch, generated, engine = generate_pending(batch, lines, started=started)
        held.enter_context(batch.file)
        with mark_failed_on_error(this, run_name(started)):
            delivered = restore(batch)
            if stream:
                this = windowed_ordering.store_streamed_prompts(this, batch.file.path)
            run = record_of(batch, why, generated, engine, delivered, started, flow_run_id())
            keep(this, run)  # before all that follows, so that a crash there loses no figures
        batch.checkpoint.discard()
    return announce_batch(record(this, report(this, run), inputs), this)


def begin(job: Job, restart: bool) -> tuple[Batch, str]:
    """Of a job's own prompts: all are checked and their order is known or begun before anything is spent.

    Only the tokenizer waits until an engine loads: it takes seconds, and the model's own is hardly ever broken alone.
    """
    source, tokenizer = validate(job), Tokenizer(job)
    order, why = choose_order(job, source, tokenizer)
    return generation.begin(job, source, order, tokenizer, restart=restart), why


@task(name="open the stream", task_run_name="open the stream", cache_policy=NO_CACHE)
def begin_stream(job: Job, stream: Stream, restart: bool) -> tuple[Batch, str]:
    """Of prompts that come one after the other; those that came before must come again."""
    order, why = select_order.select_stream_order(job)
    return generation.begin_stream(job, stream, order, Tokenizer(job), restart=restart), why


@task(name="validate", task_run_name="validate prompts", cache_policy=NO_CACHE)
def validate(job: Job) -> PromptSource:
    """Every row is read and checked, before anything is spent."""
    return PromptSource(job.prompts_path, RequestDefaults(job))


@task(name="order", task_run_name="take or make the order", cache_policy=NO_CACHE)
def choose_order(
    job: Job, source: PromptSource, tokenizer: Tokenizer, folder: str = checkpoint_folder.FOLDER
) -> tuple[Order | select_order.WindowedOrder, str]:
    """The promoted order; for new prompts what its way to order gives; else the file's own."""
    kept = checkpoint_folder.read_order(job.data_dir / folder)
    return select_order.select_order(job, source, lambda: tokenizer, kept)


def generate_pending(
    batch: Batch,
    lines: OutputLines | None = None,
    ready: Callable[[EngineInfo], None] | None = None,
    started: datetime.datetime | None = None,
) -> tuple[Batch, Generated, EngineInfo | None]:
    """An engine for what is still to be sent; none where an earlier run has finished everything.

    Args:
        ready: called with what the engine says of itself, before anything is sent.

    Returns the batch with its whole order, which a stream and a windowed order have only now.
    """
    if batch.windowed:
        batch.tokenizer.load()  # windows are made of rendered prompts, the first one before an engine is there
    if not batch.unfinished:
        return generation.complete(batch), Generated(), None
    with accelerator(), start_engine(batch.job, batch.job.lossy_k0, partial(_while_it_loads, batch)) as engine:
        if ready:
            ready(engine.info)
        generated, info = generate(batch, engine, lines, started), engine.info
    return generation.complete(batch), generated, info


def _while_it_loads(batch: Batch) -> None:
    """What takes seconds and needs no engine: the tokenizer, and the libraries of all that comes afterwards."""
    batch.tokenizer.load()
    for name in USED_AFTERWARDS:
        with suppress(Exception):  # whoever uses it says what is wrong, and only an output may not do without
            importlib.import_module(name)


@task(name="generate", task_run_name="generate", cache_policy=NO_CACHE)
def generate(
    batch: Batch, engine: Engine, lines: OutputLines | None = None, started: datetime.datetime | None = None
) -> Generated:
    """What is still to be sent, each answer on disk as it finishes.

    Args:
        lines: told each result as it is kept.
        started: of the run that is recorded under its time; None: it is no run of the job, and MLflow hears nothing.
    """
    if batch.job.lossy_k0 is not None:
        get_run_logger().warning("%s, as params.yaml accepts it", routing_named(batch.job.lossy_k0))
    kept = batch.checkpoint.resumed
    if kept:
        get_run_logger().info("%d prompts were finished by an earlier run and are not sent again", kept)
    if batch.checkpoint.damaged:
        get_run_logger().warning(
            "%d results on disk were damaged: their prompts are sent again", batch.checkpoint.damaged
        )
    with BatchReporter(batch, started) as reporter:
        return generation.generate(batch, engine, reporter.progress, lines.add if lines else None)


@task(name="restore", task_run_name="restore the file's order, validate outputs", cache_policy=NO_CACHE)
def restore(batch: Batch) -> Delivered:
    """Great Expectations on the outputs, and outputs.parquet only if they hold."""
    return delivery.deliver(batch, batch.job.root / "reports" / "validation" / batch.job.name)


@task(name="report", task_run_name="draw the picture, tell MLflow", cache_policy=NO_CACHE)
def report(job: Job, run: BatchRun) -> BatchRun:
    """The run's picture; MLflow now, or later where it is down."""
    return batch_recording.report(job, run)


@task(name="record", task_run_name="record in DVC", cache_policy=NO_CACHE)
def record(job: Job, run: BatchRun, inputs: recording.Inputs | None) -> BatchRun:
    """The outputs in DVC, and published as far as the job asks for it."""
    return batch_recording.record(job, run, inputs)


def _waiting(holder: str) -> None:
    get_run_logger().info("%s generates for this job: waiting for it to end", holder)
