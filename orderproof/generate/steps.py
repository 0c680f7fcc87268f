"""The steps of the job itself, one function each. story.py puts them together; tasks/generate.py makes them tasks."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from pathlib import Path

from orderproof.engines.admission import log_what_may_reorder
from orderproof.engines.protocol import Engine
from orderproof.generate import delivery, generation, select_order
from orderproof.generate.checkpoint_folder import FOLDER, read_order
from orderproof.generate.delivery import Delivered
from orderproof.generate.generation import Batch, Generated
from orderproof.generate.output_lines import OutputLines
from orderproof.generate.picture import draw_generation
from orderproof.generate.run_progress import RunProgress
from orderproof.generate.select_order import WindowedOrder
from orderproof.generate.tracking import tracking_of
from orderproof.job.spec import Job
from orderproof.lossy.routing import routing_name
from orderproof.orders.order import Order
from orderproof.prompts.source import PromptSource, open_prompts
from orderproof.prompts.stream import Stream
from orderproof.prompts.tokenization import Tokenizer
from orderproof.runs import recorder
from orderproof.runs.inputs import Inputs
from orderproof.runs.progress import NewProgress
from orderproof.runs.promotion import ORDER_FILE
from orderproof.runs.recorder import Presentation
from orderproof.runs.run import Run

logger = logging.getLogger(__name__)


def validate(job: Job) -> PromptSource:
    """Read and check every row, before anything is spent."""
    return open_prompts(job)


def choose_order(
    job: Job, source: PromptSource, tokenizer: Tokenizer, folder: str = FOLDER
) -> tuple[Order | WindowedOrder, str]:
    """The promoted order; for new prompts, the promoted way to order applied to them; else the file's own."""
    log_what_may_reorder(job)
    unfinished = read_order(job.data_dir / folder)
    return select_order.select_order(job, source, lambda: tokenizer, unfinished)


def open_stream(job: Job, stream: Stream, restart: bool) -> tuple[Batch, str]:
    """The batch of prompts that arrive one after another. To resume, the same prompts come again from the beginning."""
    order, reason = select_order.select_stream_order(job)
    return generation.begin_stream(job, stream, order, Tokenizer(job), restart=restart), reason


def generate(
    batch: Batch,
    engine: Engine,
    new_progress: NewProgress,
    started: datetime.datetime,
    prefect_run: str | None,
    lines: OutputLines | None = None,
    live: bool = True,
) -> Generated:
    """Send what is still to be sent; each answer is on disk as it finishes.

    Args:
        lines: gets each result as it is kept.
        live: send figures to MLflow during the run.
    """
    if batch.job.lossy_k0 is not None:
        logger.warning("%s, as params.yaml accepts it", routing_name(batch.job.lossy_k0))
    if batch.checkpoint.resumed:
        logger.info("%d prompts were finished by an earlier run and are not sent again", batch.checkpoint.resumed)
    if batch.checkpoint.results.damaged:
        logger.warning(
            "%d results on disk were damaged: their prompts are sent again", batch.checkpoint.results.damaged
        )
    kept: Callable[[int], None] | None = lines.add if lines else None
    with RunProgress(batch, started, new_progress, prefect_run, live=live) as progress:
        return generation.generate(batch, engine, progress.update, kept)


def restore(batch: Batch) -> Delivered:
    """Check the outputs with Great Expectations, and write outputs.parquet only if they pass."""
    return delivery.deliver(batch, batch.job.root / "reports" / batch.job.name / "validation")


def report(job: Job, run: Run) -> Run:
    """Keep the run with its picture and page, and send it to MLflow."""
    return recorder.keep(job, run, presentation(run))


def record(job: Job, run: Run, inputs: Inputs | None) -> Run:
    """Record the outputs in DVC, and publish them as far as the job asks for it.

    The outputs are complete whatever DVC says, so its failure is a note. Inputs that changed are never recorded.

    Args:
        inputs: None: the prompts came as a stream, and DVC's stage makes outputs of the job's file only.
    """
    if inputs is None:
        return run.with_notes(
            f"not recorded in DVC: the prompts came as a stream and are kept in {run.basis.prompts}. To version both, "
            f"give that file to a job as its `prompts`, or `dvc add` it with a copy of {run.files['outputs']}"
        )
    run = recorder.record(job, run, inputs)
    if run.notes and run.notes[-1].startswith("not recorded in DVC") and not (job.data_dir / ORDER_FILE).exists():
        return run.with_notes(f"`orderproof measure {job.name}` chooses an order, which the stage in dvc.yaml needs")
    return run


def presentation(run: Run) -> Presentation:
    """Picture and MLflow's part of a generation."""

    def draw(folder: Path) -> None:
        draw_generation(run, folder / "steps.png")

    return Presentation(draw=draw, tracking=tracking_of)
