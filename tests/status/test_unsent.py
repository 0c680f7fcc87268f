"""Runs that MLflow lacks are sent later: each once, the oldest first."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from orderproof.job.paths import Verb
from orderproof.job.spec import Job
from orderproof.runs import recorder
from orderproof.runs.mlflow_client import TrackingError
from orderproof.runs.mlflow_run import Tracking
from orderproof.runs.recorder import Presentation
from orderproof.runs.run import Run
from orderproof.runs.run_store import RECORD_FILE, RunError, run_folder, write_run
from orderproof.runs.sent import sent_as
from orderproof.status.unsent import TRACKING, send_unsent
from tests.support.run_maker import make_job_run
from tests.support.tracker import NOWHERE, sent_runs
from tests.support.trial_maker import make_job

FIRST, SECOND, THIRD = "20261128T144640Z-0001", "20261129T144640Z-0002", "20261130T144640Z-0003"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job with runs of three verbs, none of them sent."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    job = make_job(tmp_path)
    for run_id, verb in ((SECOND, "generate"), (FIRST, "plan"), (THIRD, "capture")):
        write_run(job, make_job_run(job, run_id, verb))
    return job


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A tracker that takes everything at once, and the ids of the runs that it has."""
    held: list[str] = []

    def send_run(job: Job, run: Run, tracking: Tracking) -> str:
        held.append(run.id)
        return f"mlflow {run.id}"

    monkeypatch.setattr(recorder, "send_run", send_run)
    return held


def test_every_verb_can_be_sent_later() -> None:
    assert set(TRACKING) == set(get_args(Verb))


def test_all_runs_reach_a_real_tracker_once(job: Job) -> None:
    sent = send_unsent(job)
    assert {entity.info.run_id for entity in sent_runs(job)} == {run.mlflow_run for run in sent}
    assert send_unsent(job) == []
    assert len(sent_runs(job)) == 3


def test_the_oldest_is_sent_first_and_each_is_marked(job: Job, tracker: list[str]) -> None:
    sent = send_unsent(job)
    assert [(run.verb, run.id) for run in sent] == [("plan", FIRST), ("generate", SECOND), ("capture", THIRD)]
    assert tracker == [FIRST, SECOND, THIRD]
    assert [sent_as(job, run) for run in sent] == [f"mlflow {run.id}" for run in sent]


def test_a_run_that_was_sent_at_once_is_not_sent_again(job: Job, tracker: list[str]) -> None:
    run = make_job_run(job, "20261201T144640Z-0004")
    assert recorder.keep(job, run, Presentation()).mlflow_run == f"mlflow {run.id}"
    send_unsent(job)
    assert tracker.count(run.id) == 1


def test_a_tracker_that_is_down_is_an_error_and_marks_nothing(job: Job, no_tracker: None) -> None:
    for _ in range(2):
        with pytest.raises(TrackingError, match="`orderproof log six-domains`"):
            send_unsent(job)


def test_another_tracker_gets_all_runs_too(job: Job, tracker: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    send_unsent(job)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    send_unsent(job)
    assert tracker == [FIRST, SECOND, THIRD] * 2


def test_a_record_that_cannot_be_read_is_named(job: Job) -> None:
    path = run_folder(job, "plan", FIRST) / RECORD_FILE
    path.write_text("{}")
    with pytest.raises(RunError, match=str(path)):
        send_unsent(job)
