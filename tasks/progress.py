"""Progress on a terminal and as Prefect's progress artifact, which a thread updates beside the work."""

from __future__ import annotations

import contextvars
import threading
import time
from types import TracebackType
from typing import Self
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from orderproof.runs.progress import TerminalProgress
from tasks.artifacts import artifact_key, best_effort

EVERY_S = 15.0  # a run may last hours; a server should not hear of every request
PATIENCE_S = 5.0  # with a server that is asked something while the work ends


class PrefectProgress:
    """A bar on a terminal and a progress artifact. A server that does not answer never holds up the work."""

    def __init__(self, job: str, total: int | None, what: str) -> None:
        self._job, self._total, self._what = job, total, what
        self._terminal = TerminalProgress(job, total, what)
        self._artifact: UUID | None = None
        self._due_s = 0.0
        self._sending: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._terminal.__enter__()
        with best_effort("the progress artifact"):
            key = artifact_key(f"progress-{self._what.split()[0]}", self._job)
            created = create_progress_artifact(0.0, key=key, description=f"{self._job}: {self._what}")
            self._artifact = created if isinstance(created, UUID) else None
        self._due_s = time.monotonic() + EVERY_S
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._terminal.__exit__(kind, error, trace)
        if kind is None:
            self._finish()

    def update(self, done: int, text: str | None = None, rate: str = "") -> None:
        """Move the bar, and now and then the artifact."""
        self._terminal.update(done, text, rate)
        now = time.monotonic()
        if now >= self._due_s and self._total:
            self._due_s = now + EVERY_S
            self._send(min(99.0, round(100 * done / self._total, 1)))

    def _finish(self) -> None:
        """Behind what is being sent, and waited for: the page must not stay at 97 %."""
        if self._sending:
            self._sending.join(PATIENCE_S)
        self._send(100.0)
        if self._sending:
            self._sending.join(PATIENCE_S)

    def _send(self, percent: float) -> None:
        if self._artifact is None or (self._sending and self._sending.is_alive()):
            return
        call = contextvars.copy_context().run
        self._sending = threading.Thread(target=call, args=(_update, self._artifact, percent), daemon=True)
        self._sending.start()


def _update(artifact: UUID, percent: float) -> None:
    with best_effort("the progress"):
        update_progress_artifact(artifact, percent)
