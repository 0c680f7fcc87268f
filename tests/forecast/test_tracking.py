"""A plan in MLflow: once, with its page and no prompt, also where the tracker was down at first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orderproof.forecast import candidates
from orderproof.forecast.page import write_forecast
from orderproof.forecast.planning import JobForecast, forecast_job
from orderproof.forecast.stored_prediction import PLAN_FILE, plan_dir
from orderproof.forecast.tracking import RUN_TAG, log_plan, log_waiting
from orderproof.job.spec import Job, OrderSpec
from orderproof.runs.trial_tracking import TrackingError, tracking_uri
from tests.generate.test_record import NOWHERE, sent_runs
from tests.support.captured_job import calibrated, make_job

WAYS = [OrderSpec(method="file"), OrderSpec(method="label"), OrderSpec(method="label", window=64)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, JobForecast]:
    job = make_job(tmp_path_factory.mktemp("plan"), captured=96)
    calibrated(job)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidates, "_specs", lambda job, prompts: WAYS)
        return job, forecast_job(job)


def kept(job: Job) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((plan_dir(job) / PLAN_FILE).read_bytes())
    return plan


def test_a_plan_that_no_tracker_took_is_sent_later_once_and_without_prompts(
    seen: tuple[Job, JobForecast], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, job_forecast = seen
    folder = write_forecast(job, job_forecast)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackingError, match=r"did not take plan .* of it: [\s\S]*`orderproof log it` sends it later"):
        log_plan(job)
    assert kept(job)["mlflow_run"] is None
    monkeypatch.delenv("MLFLOW_TRACKING_URI")

    ((name, run),) = log_waiting(job, dvc_revision="abc").items()
    assert name == f"plan {kept(job)['created_utc']}"
    assert kept(job)["mlflow_run"] == run
    assert log_waiting(job) == {}
    assert log_plan(job) == run
    (held,) = sent_runs(job)
    assert (held.info.run_id, held.info.run_name, held.info.status) == (run, "plan it", "FINISHED")
    assert held.data.tags[RUN_TAG] == kept(job)["created_utc"]
    assert (held.data.tags["advice"], held.data.tags["dvc_revision"]) == ("measure", "abc")
    assert (held.data.params["candidate"], held.data.params["order"]) == ("label", '{"method":"label"}')

    assert job_forecast.candidate is not None
    assert held.data.metrics["foretold_gain"] == job_forecast.candidate[1].gain == held.data.metrics["gain/label"]
    assert "gain/label windows of 64" in held.data.metrics
    assert held.data.metrics["batches"] == 12
    from mlflow import MlflowClient

    sent = {file.path for file in MlflowClient(tracking_uri=tracking_uri(job.root)).list_artifacts(run)}
    assert sent == {"plan.json", "plan.html", "plan.png"}
    texts = [json.loads(line)["text"] for line in job.prompts_path.read_text().splitlines()]
    told = (folder / "plan.json").read_text() + (folder / "plan.html").read_text()
    assert not any(text in told for text in texts)


def test_a_plan_from_before_plans_were_sent_waits_for_nothing(seen: tuple[Job, JobForecast]) -> None:
    job, job_forecast = seen
    folder = write_forecast(job, job_forecast)
    old = {key: value for key, value in kept(job).items() if key not in ("created_utc", "mlflow_run")}
    (folder / PLAN_FILE).write_text(json.dumps(old))
    assert log_waiting(job) == {}
