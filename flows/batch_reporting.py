"""What a person sees of a batch while it runs and when it ends: terminal, Prefect's log and artifacts.

In: prompts done, steps so far, the run's record. Out: nothing that an output could depend on: whatever fails here is
left out, because outputs wait for no server.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from types import TracebackType
from typing import cast
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.logging import get_run_logger

from orderproof.flows.reporting import ARTIFACT_EVERY_S, artifact_key, progress_bar
from orderproof.tasks.batch.record import BatchRun
from orderproof.tasks.batch.step_summary import StepSummary
from orderproof.tasks.jobs import Job

BAR_EVERY_S = 0.25
LOG_EVERY_S = 60.0


class BatchReporter:
    """Progress of a batch: a bar on a terminal, a line a minute in the log, a progress artifact in Prefect."""

    def __init__(self, job: Job, total: int | None, resumed: int) -> None:
        """`total`: None for a stream, whose end nobody knows."""
        self.job, self.total, self.resumed = job, total, resumed
        self.started = self.drawn = self.logged = self.told = time.monotonic()
        self.telling: threading.Thread | None = None
        self.artifact: UUID | None = None
        self.bar = progress_bar()
        self.log = get_run_logger()  # while the thread is the task's: a prompt that cannot be sent is told by another

    def __enter__(self) -> BatchReporter:
        self.bar.start()
        self.row = self.bar.add_task(self.job.name, total=self.total, completed=self.resumed, rate="")
        with contextlib.suppress(Exception):  # a server that is gone
            key, about = artifact_key("progress-generate", self.job.name), f"prompts of {self.job.name}"
            self.artifact = cast(
                UUID, create_progress_artifact(self._percent(self.resumed), key=key, description=about)
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if kind is None:
            self._tell(self.total or 0)

    def progress(self, done: int, total: int, steps: StepSummary) -> None:
        """Called for every finished request: it must cost next to nothing."""
        now = time.monotonic()
        if now - self.drawn > BAR_EVERY_S:
            self.drawn = now
            rate = (done - self.resumed) / (now - self.started)
            self.bar.update(self.row, completed=done, rate=f"{rate:.1f} req/s")
        if now - self.logged > LOG_EVERY_S:
            self.logged = now
            self.log.info("%d of %d prompts; %.1f ms a step (median), %.1f sequences running", done, total,
                                  steps.percentile(50), steps.running_mean)  # fmt: skip
        if now - self.told > ARTIFACT_EVERY_S:
            self.told = now
            self._tell(done)

    def _tell(self, done: int) -> None:
        """Update the artifact beside the work: a server that does not answer must not hold up the engine."""
        if self.artifact is None or (self.telling and self.telling.is_alive()):
            return
        call = contextvars.copy_context().run
        self.telling = threading.Thread(
            target=call, args=(self._update, self.artifact, self._percent(done)), daemon=True
        )
        self.telling.start()

    @staticmethod
    def _update(artifact: UUID, percent: float) -> None:
        with contextlib.suppress(Exception):
            update_progress_artifact(artifact, percent)

    def _percent(self, done: int) -> float:
        return 0.0 if self.total is None else round(100 * done / max(1, self.total), 1)


def announce_batch(run: BatchRun, job: Job) -> BatchRun:
    """The run's figures as Prefect's artifact, and in the log."""
    log = get_run_logger()
    log.info("%s (%s)", run.sentence(), run.order_why)
    for note in run.notes:
        log.warning("%s", note)
    with contextlib.suppress(Exception):  # the outputs are there, with or without a server
        create_markdown_artifact(_markdown(run), key=artifact_key("batch", job.name), description=run.sentence())
    return run


def _markdown(run: BatchRun) -> str:
    hidden = ("schema_version", "notes", "failures", "order", "versions", "machine")
    rows = "\n".join(
        f"| {key} | {value} |" for key, value in run.as_json().items() if key not in hidden and value is not None
    )
    failures = "".join(f"\n- {id}: {reason}" for id, reason in run.failures)
    notes = "".join(f"\n- {note}" for note in run.notes)
    return f"# {run.sentence()}\n\n| | |\n|---|---|\n{rows}\n{failures}{notes}\n"
