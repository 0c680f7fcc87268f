"""MLflow shows a batch while it runs, and a tracker that is slow or down holds up nothing. The tracker is real."""

from __future__ import annotations

import datetime
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.engines.protocol import Steps
from orderproof.generate import live_metrics
from orderproof.generate.delivery import DeliveryError
from orderproof.generate.generation import Generated
from orderproof.generate.live_metrics import LiveMetrics
from orderproof.job.spec import Job
from orderproof.runs.mlflow_client import tracking_uri
from orderproof.runs.mlflow_run import RUN_TAG, begin_run, mark_failed_on_error
from orderproof.runs.run_store import new_id
from tests.support.tracker import sent_runs
from tests.support.trial_maker import make_job

STARTED = datetime.datetime(2026, 11, 29, 14, 46, 40, tzinfo=datetime.UTC)
RUN, EARLIER, LATER = (new_id(STARTED + datetime.timedelta(hours=hours)) for hours in (0, -1, 1))
NOWHERE_ON_DISK = "sqlite:////proc/no/such/place.db"
FIGURES = {"live/done", "live/throughput_req_s", "live/throughput_tok_s", "live/running", "live/waiting"}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(live_metrics, "EVERY_S", 0.05)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return make_job(tmp_path)


@pytest.fixture
def silent() -> Iterator[str]:
    """A tracker that takes calls and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def after(results: int, running: int) -> Generated:
    """A run that has had so many results, ten tokens each, in one step."""
    run = Generated(results=results, output_tokens=10 * results)
    run.steps.add(Steps(np.array([5.0]), np.array([running]), np.array([7])))
    return run


def history(job: Job, run: str, figure: str) -> list[float]:
    from mlflow import MlflowClient

    return [point.value for point in MlflowClient(tracking_uri=tracking_uri(job.root)).get_metric_history(run, figure)]


@contextmanager
def sending(job: Job, run: str, killed: str | None = None) -> Iterator[LiveMetrics]:
    sender = LiveMetrics(job, run, STARTED, killed)
    sender.start()
    yield sender
    sender.stop(complete=True)


def wait_for(sender: LiveMetrics, sent: int) -> None:
    patience = time.monotonic() + 120
    while sender.sent < sent:
        assert time.monotonic() < patience
        time.sleep(0.02)


def test_figures_are_there_while_the_batch_runs(job: Job) -> None:
    with sending(job, RUN) as sender:
        sender.update(30, after(30, running=16))
        wait_for(sender, 2)
        (seen,) = sent_runs(job)
        assert (seen.info.status, seen.data.tags[RUN_TAG]) == ("RUNNING", f"generate/{RUN}")
        assert set(seen.data.metrics) >= FIGURES
        sender.update(80, after(80, running=12))
        wait_for(sender, sender.sent + 2)
    assert {30.0, 80.0} <= set(history(job, seen.info.run_id, "live/done"))
    assert max(history(job, seen.info.run_id, "live/throughput_tok_s")) > 0
    assert history(job, seen.info.run_id, "live/running")[0] == 16
    assert history(job, seen.info.run_id, "live/waiting")[0] == 7


def test_a_run_that_failed_or_was_killed_runs_no_longer_there(job: Job) -> None:
    failed = LiveMetrics(job, EARLIER, STARTED)
    failed.start()
    failed.update(1, after(1, running=1))
    wait_for(failed, 1)
    failed.stop(complete=False)
    killed = LiveMetrics(job, RUN, STARTED)
    killed.update(1, after(1, running=1))
    killed._send()
    with sending(job, LATER, killed=RUN) as sender:
        sender.update(2, after(2, running=1))
        wait_for(sender, 1)
    states = {run.data.tags[RUN_TAG]: run.info.status for run in sent_runs(job)}
    assert states == {
        f"generate/{EARLIER}": "FAILED",
        f"generate/{RUN}": "KILLED",
        f"generate/{LATER}": "RUNNING",
    }


def test_a_run_whose_outputs_could_not_be_delivered_runs_no_longer_there(job: Job) -> None:
    with sending(job, RUN) as sender:
        sender.update(1, after(1, running=1))
        wait_for(sender, 1)
    assert [run.info.status for run in sent_runs(job)] == ["RUNNING"], "until its record completes it"
    with mark_failed_on_error(job, "generate", RUN):
        pass
    assert [run.info.status for run in sent_runs(job)] == ["RUNNING"]
    with pytest.raises(DeliveryError, match="too many"), mark_failed_on_error(job, "generate", RUN):
        raise DeliveryError("too many")
    assert [run.info.status for run in sent_runs(job)] == ["FAILED"]


def test_a_tracker_that_is_down_hides_no_reason_of_a_failure(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE_ON_DISK)
    with pytest.raises(DeliveryError, match="too many"), mark_failed_on_error(job, "generate", RUN):
        raise DeliveryError("too many")


def test_a_batch_that_is_over_at_once_sends_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_metrics, "EVERY_S", 60)
    with sending(job, RUN) as sender:
        sender.update(5, after(5, running=1))
    assert sent_runs(job) == []


def test_a_tracker_that_answers_after_the_end_holds_no_second_run(job: Job) -> None:
    late = LiveMetrics(job, RUN, STARTED)
    late.update(5, after(5, running=1))
    late._ended.set()
    late._send()
    assert sent_runs(job) == []


@pytest.mark.parametrize("completed", [False, True])
def test_a_run_that_is_made_after_the_end_stays_only_if_the_record_completed_it(
    job: Job, monkeypatch: pytest.MonkeyPatch, completed: bool
) -> None:
    late = LiveMetrics(job, RUN, STARTED)
    late.update(5, after(5, running=1))

    def slowly(client: Any, *rest: Any) -> str:
        made = begin_run(client, *rest)
        late._ended.set()
        if completed:
            client.set_terminated(made)
        return made

    monkeypatch.setattr(live_metrics, "begin_run", slowly)
    late._send()
    assert [run.info.status for run in sent_runs(job)] == ["FINISHED"] * completed
    assert late.sent == 0


def test_a_tracker_that_is_down_is_left_alone_after_some_tries(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE_ON_DISK)
    with sending(job, RUN) as sender:
        sender.update(1, after(1, running=1))
        patience = time.monotonic() + 120
        while len(caplog.records) < live_metrics.MAX_FAILURES:
            assert time.monotonic() < patience
            time.sleep(0.02)
        time.sleep(5 * live_metrics.EVERY_S)
    warnings = [record.getMessage() for record in caplog.records if record.name == live_metrics.__name__]
    assert len(warnings) == live_metrics.MAX_FAILURES
    assert all("MLflow" in warning for warning in warnings)


def test_nothing_waits_for_a_tracker_that_never_answers(job: Job, monkeypatch: pytest.MonkeyPatch, silent: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", silent)
    monkeypatch.setattr(live_metrics, "STOP_TIMEOUT_S", 0.0)
    with sending(job, RUN) as sender:
        sender.update(1, after(1, running=1))
        time.sleep(10 * live_metrics.EVERY_S)
    assert (sender.sent, sender._thread.is_alive()) == (0, True), "the batch went on while the tracker was asked"
