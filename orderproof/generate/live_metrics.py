"""Send the figures of a generation to MLflow during the run: metrics `live/…`, from a separate thread.

The run's record later completes the same MLflow run. A tracker that is unreachable or slow delays nothing: figures that
it does not accept are skipped, because the record has all of them.
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
from orderproof.job.errors import OrderproofError
from orderproof.job.spec import Job
from orderproof.runs.mlflow_client import connected
from orderproof.runs.mlflow_run import begin_run, find_runs
from orderproof.runs.run_store import verb_folder

EVERY_S = 10.0
STOP_TIMEOUT_S = 5.0  # for a request to the tracker that is still open when the batch ends
MAX_FAILURES = 3  # in a row; then nothing more is sent

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Sums:
    """Sums of a run up to a moment; the difference of two gives the rates between them."""

    at_s: float
    outputs: int
    tokens: int
    steps: int
    running: float  # sequences, summed over the steps
    waiting: float

    @classmethod
    def from_run(cls, run: Generated) -> _Sums:
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
    """Sends the values of the latest `update`, every EVERY_S."""

    def __init__(self, job: Job, run: str, started: datetime.datetime, killed: str | None = None) -> None:
        """`run`: id of the run; `killed`: id of an earlier run that was interrupted."""
        self.job, self.run, self.started, self.killed = job, run, started, killed
        self.mlflow_run: str | None = None
        self.sent = 0
        self._latest: tuple[int, Generated] | None = None
        self._before = _Sums.from_run(Generated())
        self._started_s = self._before.at_s
        self._ended, self._complete = threading.Event(), False
        self._thread = threading.Thread(target=self._send_regularly, daemon=True)

    def start(self) -> None:
        """Begin to send, until `stop`."""
        self._thread.start()

    def stop(self, *, complete: bool) -> None:
        """`complete`: whether the batch is complete; otherwise the MLflow run is marked as failed."""
        self._complete = complete
        self._ended.set()
        self._thread.join(STOP_TIMEOUT_S)

    def update(self, done: int, generated: Generated) -> None:
        """Called for every finished request, so it must be cheap. `done`: finished prompts, including earlier runs."""
        self._latest = done, generated

    def _send_regularly(self) -> None:
        failures = 0
        while failures < MAX_FAILURES and not self._ended.wait(EVERY_S):
            try:
                self._send()
                failures = 0
            except OrderproofError as error:
                failures += 1
                _log.warning("live figures are not in MLflow: %s", error)
        self._ended.wait()
        if self.mlflow_run and not self._complete:
            with contextlib.suppress(OrderproofError), self._connected() as (client, _):
                client.set_terminated(self.mlflow_run, "FAILED")

    def _send(self) -> None:
        if self._latest is None:
            return
        from mlflow.entities import Metric

        done, now = self._latest[0], _Sums.from_run(self._latest[1])
        with self._connected() as (client, experiment):
            if self._ended.is_set():  # while waiting for the tracker: the record now creates its own run
                return
            if self.mlflow_run is None:
                run_id = self._begin(client, experiment)
                if self._ended.is_set():  # while it was created: as above
                    if client.get_run(run_id).info.status == "RUNNING":  # the record did not complete this run
                        client.delete_run(run_id)
                    return
                self.mlflow_run = run_id
            at_ms, step = time.time_ns() // 10**6, round(now.at_s - self._started_s)
            figures = {"live/done": float(done), **now.since(self._before)}
            client.log_batch(self.mlflow_run, [Metric(key, value, at_ms, step) for key, value in figures.items()])
        self._before = now
        self.sent += 1

    def _begin(self, client: Any, experiment: str) -> str:
        for killed in find_runs(client, experiment, "generate", self.killed) if self.killed else ():
            client.set_terminated(killed.info.run_id, "KILLED")
        return begin_run(client, experiment, "generate", self.run, self.job.name, self.started)

    def _connected(self) -> AbstractContextManager[tuple[Any, str]]:
        return connected(self.job, f"figures of run {self.run}", verb_folder(self.job, "generate"))
