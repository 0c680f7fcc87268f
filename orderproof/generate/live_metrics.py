"""Figures of a batch in MLflow while it runs: metrics `live/…` with a step for each, from a thread of their own.

In: how far the batch is, told as often as one likes. Out: the MLflow run that `log_batch` completes when the batch has
ended. A tracker that is down or slow holds up nothing: what it does not take is left out, because the record of the
run has it all. Knows nothing of engines or Prefect.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from orderproof.generate.generation import Generated
from orderproof.generate.record import reports_of
from orderproof.generate.tracking import begin_run
from orderproof.job.errors import OrderproofError
from orderproof.job.spec import Job
from orderproof.runs.trial_tracking import connected

EVERY_S = 10.0
PATIENCE_S = 5.0  # with a tracker that is asked something while the batch ends
FAILURES = 3  # in a row; then the tracker is left alone until the batch has ended

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Sums:
    """What a run has done up to a moment, so that the difference of two tells of the time between them."""

    at_s: float
    outputs: int
    tokens: int
    steps: int
    running: float  # sequences, summed over the steps
    waiting: float

    @classmethod
    def of(cls, run: Generated) -> _Sums:
        steps = run.steps
        counts = (run.outputs, run.output_tokens, steps.steps)
        return cls(time.monotonic(), *counts, steps.running_mean * steps.steps, steps.waiting_mean * steps.steps)

    def since(self, earlier: _Sums) -> dict[str, float]:
        seconds, steps = max(1e-9, self.at_s - earlier.at_s), max(1, self.steps - earlier.steps)
        return {
            "live/throughput_req_s": (self.outputs - earlier.outputs) / seconds,
            "live/throughput_tok_s": (self.tokens - earlier.tokens) / seconds,
            "live/running": (self.running - earlier.running) / steps,
            "live/waiting": (self.waiting - earlier.waiting) / steps,
        }


class LiveMetrics:
    """Sends what `tell` was told last, every EVERY_S."""

    def __init__(self, job: Job, run: str, started: datetime.datetime, killed: str | None = None) -> None:
        """`run`: the name of the run's record; `killed`: that of an earlier one which did not come to its end."""
        self.job, self.run, self.started, self.killed = job, run, started, killed
        self.mlflow_run: str | None = None
        self.sent = 0
        self._told: tuple[int, Generated] | None = None
        self._before = _Sums.of(Generated())
        self._begun_s = self._before.at_s
        self._ended, self._whole = threading.Event(), False
        self._thread = threading.Thread(target=self._send_regularly, daemon=True)

    def start(self) -> None:
        """From now on, until `stop`."""
        self._thread.start()

    def stop(self, *, whole: bool) -> None:
        """`whole`: the batch came to its end; the run there is ended as failed otherwise."""
        self._whole = whole
        self._ended.set()
        self._thread.join(PATIENCE_S)

    def tell(self, done: int, generated: Generated) -> None:
        """Called for every finished request: it costs next to nothing. `done`: earlier runs' included."""
        self._told = done, generated

    def _send_regularly(self) -> None:
        failures = 0
        while failures < FAILURES and not self._ended.wait(EVERY_S):
            try:
                self._send()
                failures = 0
            except OrderproofError as error:
                failures += 1
                _log.warning("no live figures in MLflow: %s", error)
        self._ended.wait()
        if self.mlflow_run and not self._whole:
            with contextlib.suppress(OrderproofError), self._connected() as (client, _):
                client.set_terminated(self.mlflow_run, "FAILED")

    def _send(self) -> None:
        if self._told is None:
            return
        from mlflow.entities import Metric

        done, now = self._told[0], _Sums.of(self._told[1])
        with self._connected() as (client, experiment):
            if self._ended.is_set():  # while this waited for the tracker: the record is sent now, as a run of its own
                return
            if self.mlflow_run is None:
                begun = begin_run(client, experiment, self.run, self.started, self.killed)
                if self._ended.is_set():  # while it was made, and perhaps nobody waited: as above
                    if client.get_run(begun).info.status == "RUNNING":  # the record did not complete this one
                        client.delete_run(begun)
                    return
                self.mlflow_run = begun
            at_ms, step = time.time_ns() // 10**6, round(now.at_s - self._begun_s)
            figures = {"live/done": float(done), **now.since(self._before)}
            client.log_batch(self.mlflow_run, [Metric(key, value, at_ms, step) for key, value in figures.items()])
        self._before = now
        self.sent += 1

    def _connected(self) -> AbstractContextManager[tuple[Any, str]]:
        return connected(self.job, f"figures of run {self.run}", reports_of(self.job))
