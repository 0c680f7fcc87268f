"""What a person sees of a batch while it runs and when it ends: terminal, log, Prefect's artifacts, live figures.

In: prompts done, the run so far, the run's record. Out: nothing that an output could depend on: whatever fails here is
left out, because outputs wait for no server.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import threading
import time
from types import TracebackType
from uuid import UUID

from prefect.artifacts import create_markdown_artifact

from flows.reporting import (
    ARTIFACT_EVERY_S,
    artifact_key,
    best_effort,
    flow_run_id,
    progress_artifact,
    progress_bar,
    run_logger,
    tell_progress,
)
from orderproof.generate.generation import Batch, Generated
from orderproof.generate.generation_record import run_name
from orderproof.generate.live_metrics import LiveMetrics
from orderproof.generate.progress import SavedProgress, read_progress, write_progress
from orderproof.generate.record import BatchRun
from orderproof.job.spec import Job
from orderproof.prompts.stream import PromptStream

BAR_EVERY_S = 0.25  # on a terminal alone
NOTE_EVERY_S = 5.0  # beside the results, for `orderproof status`
LOG_EVERY_S = 60.0
PATIENCE_S = 5.0  # with a server that is told something while the batch ends


class BatchReporter:
    """Progress of a batch, shown in each place at the rate that suits it."""

    def __init__(self, batch: Batch, started: datetime.datetime | None) -> None:
        """`started`: of the run whose record the live figures are completed by; None: there will be none."""
        self.job, self.checkpoint = batch.job, batch.checkpoint.folder
        # None: a stream, whose end nobody knows
        self.total = None if isinstance(batch.source, PromptStream) else len(batch.source)
        self.resumed = batch.checkpoint.resumed
        self.run, self.prefect_run = run_name(started or datetime.datetime.now(datetime.UTC)), flow_run_id()
        before = read_progress(self.checkpoint)  # of a run that was killed: one that ends leaves no checkpoint
        self.live = LiveMetrics(self.job, self.run, started, before.run if before else None) if started else None
        self.began = time.monotonic()
        self.shows = (
            (self._draw, BAR_EVERY_S),
            (self._note, NOTE_EVERY_S),
            (self._log, LOG_EVERY_S),
            (self._tell, ARTIFACT_EVERY_S),
        )
        self.due = [self.began + every_s for _, every_s in self.shows]
        self.telling: threading.Thread | None = None
        self.artifact: UUID | None = None
        self.bar = progress_bar()
        self.log = run_logger()  # while the thread is the task's: a prompt that cannot be sent is told by another

    def __enter__(self) -> BatchReporter:
        self.bar.start()
        self.row = self.bar.add_task(self.job.name, total=self.total, completed=self.resumed, rate="")
        key, about = artifact_key("progress-generate", self.job.name), f"prompts of {self.job.name}"
        self.artifact = progress_artifact(self._percent(self.resumed), key, about)
        if self.live:
            self.live.start()
        self._note(self.resumed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if kind is None:
            self._tell_the_end()
        if self.live:
            self.live.stop(whole=kind is None)

    def progress(self, done: int, total: int, run: Generated) -> None:
        """Called for every finished request: it must cost next to nothing."""
        if self.live:
            self.live.tell(done, run)
        now = time.monotonic()
        for k, (show, every_s) in enumerate(self.shows):
            if now >= self.due[k]:
                self.due[k] = now + every_s
                show(done, run)

    def _draw(self, done: int, run: Generated) -> None:
        self.bar.update(self.row, completed=done, rate=f"{self._rate(done):.1f} req/s")

    def _note(self, done: int, run: Generated | None = None) -> None:
        now = SavedProgress(
            run=self.run,
            prefect_run=self.prefect_run,
            prompts=self.total,
            resumed=self.resumed,
            done=done,
            rate_req_s=self._rate(done),
            written_utc=datetime.datetime.now(datetime.UTC).isoformat(),
        )
        with contextlib.suppress(OSError):  # a full disk is told by whoever keeps results
            write_progress(self.checkpoint, now)

    def _log(self, done: int, run: Generated) -> None:
        left = "" if self.total is None else f"; {(self.total - done) / self._rate(done) / 60:.0f} min more"
        of_all = "" if self.total is None else f" of {self.total}"
        self.log.info("%d%s prompts; %.1f ms a step (median), %.1f sequences running%s", done, of_all,
                      run.steps.percentile(50), run.steps.running_mean, left)  # fmt: skip

    def _tell(self, done: int, run: Generated) -> None:
        self._send(self._percent(done))

    def _tell_the_end(self) -> None:
        """Behind what is being told, and waited for: whoever looks tomorrow shall not find it at 97 %."""
        if self.telling:
            self.telling.join(PATIENCE_S)
        self._send(100.0)
        if self.telling:
            self.telling.join(PATIENCE_S)

    def _send(self, percent: float) -> None:
        """Update the artifact beside the work: a server that does not answer must not hold up the engine."""
        if self.artifact is None or (self.telling and self.telling.is_alive()):
            return
        call = contextvars.copy_context().run
        self.telling = threading.Thread(target=call, args=(tell_progress, self.artifact, percent), daemon=True)
        self.telling.start()

    def _percent(self, done: int) -> float:
        return 0.0 if self.total is None else round(100 * done / max(1, self.total), 1)

    def _rate(self, done: int) -> float:
        """Requests per second of this run so far."""
        return (done - self.resumed) / max(1e-9, time.monotonic() - self.began)


def announce_batch(run: BatchRun, job: Job) -> BatchRun:
    """The run's figures as Prefect's artifact, and in the log."""
    log = run_logger()
    log.info("%s (%s)", run.sentence(), run.order_why)
    for note in run.notes:
        log.warning("%s", note)
    with best_effort("the run's figures"):
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
