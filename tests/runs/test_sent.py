"""Which tracker has which run is remembered beside the local store, and nothing depends on it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orderproof.job.spec import Job
from orderproof.runs.sent import mark_sent, sent_as
from tests.support.run_maker import make_job_run
from tests.support.trial_maker import make_job


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return make_job(tmp_path)


def ledger(job: Job) -> Path:
    return job.root / ".orderproof" / "mlflow" / "sent" / f"{job.name}.json"


def test_a_run_is_sent_to_the_tracker_that_took_it_and_to_no_other(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_job_run(job)
    assert sent_as(job, run) is None
    mark_sent(job, run, "run-1")
    assert sent_as(job, run) == "run-1"
    assert sent_as(job, make_job_run(job, verb="measure")) is None, "verbs have ids of their own"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://someone:secret@mlflow.example")
    assert sent_as(job, run) is None
    mark_sent(job, run, "run-2")
    assert sent_as(job, run) == "run-2"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert sent_as(job, run) == "run-1"
    assert "secret" not in ledger(job).read_text()


@pytest.mark.parametrize("content", ["", "[", "[]", "null"])
def test_a_broken_ledger_means_that_runs_are_sent_again(job: Job, content: str) -> None:
    run = make_job_run(job)
    mark_sent(job, run, "run-1")
    ledger(job).write_text(content)
    assert sent_as(job, run) is None
    mark_sent(job, run, "run-2")
    assert sent_as(job, run) == "run-2"


def test_processes_that_mark_at_once_lose_nothing(job: Job) -> None:
    runs = [make_job_run(job, f"20261129T1446{k:02d}Z-3f9a") for k in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda run: mark_sent(job, run, run.id), runs))
    assert [sent_as(job, run) for run in runs] == [run.id for run in runs]
