"""The local store or a server: found, opened by several processes, and one error where it is down or refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mlflow import MlflowClient

from orderproof.job.spec import Job
from orderproof.runs.mlflow_client import (
    HOW_TO_READ,
    TrackingError,
    connected,
    public_uri,
    serve_ui,
    tracking_uri,
    where_to_see,
)
from tests.support.trial_maker import make_job


@pytest.fixture(autouse=True)
def local_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def job(tracked_root: Path) -> Job:
    return make_job(tracked_root)


def connect(job: Job) -> str:
    """The id of the job's experiment."""
    with connected(job, "a run", job.root / "reports") as (_, experiment):
        return experiment


def test_each_job_has_an_experiment_that_says_how_to_read_it(job: Job) -> None:
    first = connect(job)
    assert connect(job) == first
    assert connect(make_job(job.root, name="one-domain")) != first
    experiment = MlflowClient(tracking_uri(job.root)).get_experiment(first)
    assert (experiment.name, experiment.tags["mlflow.note.content"]) == ("orderproof/six-domains", HOW_TO_READ)
    assert experiment.artifact_location.startswith((job.root / ".orderproof" / "mlflow").as_uri())


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "uri",
    [
        "http://someone:secret@127.0.0.1:9",  # the discard port: nobody listens
        "sqlite:////proc/nowhere/mlflow.db",  # MLflow itself would try for minutes
    ],
)
def test_a_tracker_that_is_down_is_one_error_that_says_what_is_safe(
    job: Job, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(TrackingError) as caught, connected(job, "a run", job.root / "reports") as (client, _):
        client.search_experiments()
    assert f"orderproof log {job.name}" in str(caught.value)
    assert str(job.root / "reports") in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_fails_after_the_connection_is_one_error_too(job: Job) -> None:
    with pytest.raises(TrackingError, match="No space left"), connected(job, "a run", job.root):
        raise OSError(28, "No space left on device")


def test_a_mistake_in_the_code_is_not_hidden_as_a_trackers_failure(job: Job) -> None:
    with pytest.raises(ZeroDivisionError), connected(job, "a run", job.root):
        _ = 1 / 0


def test_a_runs_page_is_its_address_on_a_server_without_credentials(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    local = where_to_see(job, "r1")
    assert "`orderproof ui`" in local
    assert "orderproof/six-domains" in local
    assert "r1" in local
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://user:secret@mlflow.example/")
    assert where_to_see(job, "r1") == "https://mlflow.example/#/runs/r1"
    assert public_uri(job.root) == "https://user:***@mlflow.example/"


def test_a_deleted_experiment_is_named(job: Job) -> None:
    gone = make_job(job.root, name="gone")
    experiment = connect(gone)
    MlflowClient(tracking_uri(gone.root)).delete_experiment(experiment)
    with pytest.raises(TrackingError, match="orderproof/gone was deleted"):
        connect(gone)


def test_the_pages_of_a_server_are_not_served_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrackingError, match="does not exist yet"):
        serve_ui(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://user:secret@mlflow.example")
    with pytest.raises(TrackingError, match=r"open https://user:\*\*\*@mlflow.example"):
        serve_ui(tmp_path)


def test_the_users_own_patience_stands(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")
    connect(job)
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "5"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
