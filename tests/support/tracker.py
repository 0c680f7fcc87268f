"""What a real MLflow holds of a job, and an address where none answers."""

from __future__ import annotations

from typing import Any

import pytest

from orderproof.job.spec import Job
from orderproof.runs.mlflow_client import tracking_uri

NOWHERE = "http://127.0.0.1:9"  # nobody listens on `discard`


@pytest.fixture
def no_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow is down, which shows at once."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


def sent_runs(job: Job) -> list[Any]:
    """The MLflow runs of a job's experiment; nothing without one."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking_uri(job.root))
    experiment = client.get_experiment_by_name(f"orderproof/{job.name}")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []
