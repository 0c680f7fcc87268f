"""What every flow tells a person alike: the log of its run, a bar on a terminal, names for Prefect's artifacts.

In: words and counts. Out: nothing that a result could rest on. An artifact that Prefect does not take is left out,
because no work may die of a server.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from orderproof.job.errors import OrderproofError

ARTIFACT_EVERY_S = 15.0  # a run may last hours; a server should not hear of every request


class _WithoutTraceback(logging.Filter):
    """Prefect logs a failed task with its traceback; for a mistake that the user can mend the message says all."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], OrderproofError):
            record.exc_info = None
        return True


for _name in ("prefect.flow_runs", "prefect.task_runs"):
    logging.getLogger(_name).addFilter(_WithoutTraceback())


def flow_run_id() -> str | None:
    """The Prefect flow run that this is part of."""
    return str(flow_run.id) if flow_run.id else None


def run_logger() -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
    """Prefect's logger of this run; outside of any run, as in a script, the module's own."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger(__name__)


def artifact_key(kind: str, job: str, placebo: bool = False) -> str:
    """Prefect's keys know a-z, 0-9 and dashes alone; a placebo's artifacts are not the job's."""
    return f"{'placebo-' if placebo else ''}{kind}-{job.replace('_', '-')}"


@contextlib.contextmanager
def best_effort(what: str, level: int = logging.WARNING) -> Iterator[None]:
    """Around an artifact: whatever Prefect says, the work goes on without it."""
    try:
        yield
    except Exception as error:
        run_logger().log(level, "Prefect did not take %s: %s: %s", what, type(error).__name__, error)


def progress_artifact(percent: float, key: str, description: str) -> UUID | None:
    """One of this run; None where Prefect does not take it."""
    with best_effort("the progress artifact"):
        return cast(UUID, create_progress_artifact(percent, key=key, description=description))
    return None


def tell_progress(artifact: UUID | None, percent: float) -> None:
    """Bring a progress artifact up to date, where there is one."""
    if artifact is not None:
        with best_effort("the progress", logging.DEBUG):
            update_progress_artifact(artifact, percent)


def progress_bar() -> Progress:
    """A bar with its count, a `rate` and the time left, on a terminal alone and gone when it ends."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
