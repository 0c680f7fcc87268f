"""Progress of long work: a bar on a terminal. Prefect's artifact is added by tasks/."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress(Protocol):
    """Where long work reports how far it is. A context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, done: int, text: str | None = None, rate: str = "") -> None:
        """Report units done so far. May be called for every request: it must cost next to nothing."""
        ...


NewProgress = Callable[[str, int | None, str], Progress]  # (job, units in all if that is known, what is counted)


class TerminalProgress:
    """A bar with its count, a rate and the time left; on a terminal only, and gone when it ends."""

    def __init__(self, job: str, total: int | None, what: str) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._row = self._bar.add_task(f"{job}: {what}", total=total, rate="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, done: int, text: str | None = None, rate: str = "") -> None:
        """Move the bar."""
        self._bar.update(self._row, completed=done, description=text, rate=rate)
