"""How far a generation is, reported in each place at the rate that suits it: bar, log, status file, live figures."""

from __future__ import annotations

import contextlib
import datetime
import logging
import time
from types import TracebackType
from typing import Self

from orderproof.generate.generation import Batch, Generated
from orderproof.generate.live_metrics import LiveMetrics
from orderproof.generate.progress import SavedProgress, read_progress, write_progress
from orderproof.prompts.stream import PromptStream
from orderproof.runs.progress import NewProgress
from orderproof.runs.run_store import new_id

BAR_EVERY_S = 0.25
FILE_EVERY_S = 5.0  # beside the results, for `orderproof status`
LOG_EVERY_S = 60.0

logger = logging.getLogger(__name__)


class RunProgress:
    """Progress of a generation. Whatever fails here is left out: outputs wait for no tracker. A context manager."""

    def __init__(
        self,
        batch: Batch,
        started: datetime.datetime,
        new_progress: NewProgress,
        prefect_run: str | None,
        *,
        live: bool,
    ) -> None:
        """
        Args:
            live: send figures to MLflow while the run is at work.
        """
        self._job, self._checkpoint = batch.job, batch.checkpoint.folder
        # None: a stream, whose end is unknown
        self._total = None if isinstance(batch.source, PromptStream) else len(batch.source)
        self._resumed = batch.checkpoint.resumed
        self._run, self._prefect_run = new_id(started), prefect_run
        before = read_progress(self._checkpoint)  # of a run that was killed: a run that ends leaves no checkpoint
        self._live = LiveMetrics(batch.job, self._run, started, before.run if before else None) if live else None
        self._started_s = time.monotonic()
        self._reports = ((self._move_bar, BAR_EVERY_S), (self._write, FILE_EVERY_S), (self._log, LOG_EVERY_S))
        self._due_s = [self._started_s + every_s for _, every_s in self._reports]
        self._bar = new_progress(batch.job.name, self._total, "prompts")

    def __enter__(self) -> Self:
        self._bar.__enter__()
        if self._live:
            self._live.start()
        self._bar.update(self._resumed)
        self._write(self._resumed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)
        if self._live:
            self._live.stop(complete=kind is None)

    def update(self, done: int, total: int, run: Generated) -> None:
        """Called for every finished request: it must cost next to nothing."""
        if self._live:
            self._live.update(done, run)
        now = time.monotonic()
        for k, (report, every_s) in enumerate(self._reports):
            if now >= self._due_s[k]:
                self._due_s[k] = now + every_s
                report(done, run)

    def _move_bar(self, done: int, run: Generated) -> None:
        self._bar.update(done, rate=f"{self._rate(done):.1f} req/s")

    def _write(self, done: int, run: Generated | None = None) -> None:
        progress = SavedProgress(
            run=self._run,
            prefect_run=self._prefect_run,
            prompts=self._total,
            resumed=self._resumed,
            done=done,
            rate_req_s=self._rate(done),
            written_utc=datetime.datetime.now(datetime.UTC).isoformat(),
        )
        with contextlib.suppress(OSError):  # a full disk is reported by whoever keeps results
            write_progress(self._checkpoint, progress)

    def _log(self, done: int, run: Generated) -> None:
        left = "" if self._total is None else f"; {(self._total - done) / self._rate(done) / 60:.0f} min more"
        of_all = "" if self._total is None else f" of {self._total}"
        steps = run.steps
        logger.info(
            "%d%s prompts; %.1f ms per step (median), %.1f sequences running%s",
            done,
            of_all,
            steps.percentile(50),
            steps.running_mean,
            left,
        )

    def _rate(self, done: int) -> float:
        """Requests per second of this run so far."""
        return (done - self._resumed) / max(1e-9, time.monotonic() - self._started_s)
