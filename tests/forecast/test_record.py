"""A plan as the record of a run, as a page, and in MLflow."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orderproof.forecast.planning import JobForecast
from orderproof.forecast.record import PICTURE_FILE, plan_run, presentation
from orderproof.forecast.text import describe_job, describe_worth, order_rows
from orderproof.job.spec import Job, OrderSpec
from orderproof.measure.predicted_gain import predicted_gain
from orderproof.runs import recorder
from orderproof.runs.mlflow_client import tracking_uri
from orderproof.runs.run import Run
from orderproof.runs.run_store import run_folder, write_run
from tests.support.captured_job import model_of
from tests.support.html_reader import Reader
from tests.support.tracker import sent_runs

NOON = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)


def run_of(job: Job, job_forecast: JobForecast) -> Run:
    return plan_run(job, job_forecast, NOON)


def without_forecast(job_forecast: JobForecast, answer: Any) -> JobForecast:
    advice = replace(job_forecast.advice, answer=answer, reason="it is dense", candidate=None)
    return replace(job_forecast, advice=advice, forecast=None, worth=None)


def page_of(job: Job, job_forecast: JobForecast, folder: Path) -> Reader:
    folder.mkdir(exist_ok=True)
    made = presentation(job_forecast)
    assert made.draw is not None
    made.draw(folder)
    return Reader(made.page(run_of(job, job_forecast), folder))


# -- the record --------------------------------------------------------------------------------------------------------


def test_the_record_has_the_answer_the_basis_and_the_predicted_gain(planned: tuple[Job, JobForecast]) -> None:
    job, job_forecast = planned
    run = run_of(job, job_forecast)
    assert (run.verb, run.answer, run.exit_code) == ("plan", "measure", 0)
    assert (run.basis.dataset_md5, run.basis.model_fingerprint) == (
        job_forecast.dataset_md5,
        job_forecast.model.fingerprint,
    )
    assert run.basis.sampling == job.sampling
    assert job_forecast.candidate is not None
    (gain,) = [figure for figure in run.figures if figure.name == "predicted_gain"]
    predicted = job_forecast.candidate[1]
    assert (gain.value, gain.low, gain.high) == (predicted.gain, predicted.low, predicted.high)


def test_figures_have_names_that_mlflow_takes(planned: tuple[Job, JobForecast]) -> None:
    names = [figure.name for figure in run_of(*planned).figures]
    assert "gain/label windows of 64" in names
    assert not any("," in name for name in names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("answer", "command"), [("don't", "orderproof generate it"), ("capture", "orderproof capture it")]
)
def test_the_next_command_follows_from_the_answer(planned: tuple[Job, JobForecast], answer: str, command: str) -> None:
    job, job_forecast = planned
    assert run_of(job, without_forecast(job_forecast, answer)).next_command == command


def test_a_measurement_comes_after_the_edit_that_it_needs(planned: tuple[Job, JobForecast]) -> None:
    command = run_of(*planned).next_command
    assert '{"method": "label"}' in command
    assert command.endswith("orderproof measure it")


def test_the_details_for_machines_have_a_stable_shape(planned: tuple[Job, JobForecast]) -> None:
    details = json.loads(json.dumps(run_of(*planned).as_json(), allow_nan=False))["details"]
    assert set(details) == {
        "left_out", "model", "facts", "looks", "advice", "order", "worth", "forecast", "predicted"
    }  # fmt: skip
    assert (details["advice"]["answer"], details["order"]) == ("measure", {"method": "label"})
    assert planned[1].forecast is not None
    specs = [candidate.spec for candidate in planned[1].forecast.candidates]
    orders = details["forecast"]["orders"]
    assert [order["name"] for order in orders] == ["file", "label", "label, windows of 64"]
    assert list(details["forecast"]["impossible"]) == ["greedy by embedding"]
    for order in orders:
        assert order["low"] <= order["gain"] <= order["high"]
        assert OrderSpec.model_validate(order["order"]) in specs
    worth = details["worth"]
    assert 0 < worth["saved_low_s"] < worth["saved_s"] < worth["saved_high_s"]


def test_the_next_trial_reads_what_the_plan_predicted(planned: tuple[Job, JobForecast]) -> None:
    job, job_forecast = planned
    write_run(job, run_of(job, job_forecast))
    assert job_forecast.candidate is not None
    predicted = job_forecast.candidate[1]
    read = predicted_gain(job, model_of(job), job_forecast.dataset_md5)
    assert read is not None
    assert (read.gain, read.low, read.high) == (predicted.gain, predicted.low, predicted.high)
    assert read.captured_share == 1
    other = job.model_copy(update={"order": OrderSpec(method="length")})
    assert predicted_gain(other, model_of(job), job_forecast.dataset_md5) is None


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_shows_what_the_terminal_shows_and_loads_nothing(
    planned: tuple[Job, JobForecast], tmp_path: Path
) -> None:
    job, job_forecast = planned
    page = page_of(job, job_forecast, tmp_path)
    assert [source[:22] for source in page.loaded] == ["data:image/png;base64,"]
    assert "script" not in page.tags
    assert "Measure this order: label" in page.text
    assert job_forecast.forecast is not None
    rows = [
        *describe_job(job_forecast),
        *describe_worth(job_forecast),
        *order_rows(job_forecast.forecast),
        job_forecast.left_out,
    ]
    assert [cell for row in rows for cell in row if cell not in page.text] == []
    (impossible,) = job_forecast.forecast.impossible
    assert impossible.name in page.text
    assert str(impossible.problem) in page.text


@pytest.mark.parametrize("answer", ["don't", "capture"])
def test_a_page_without_predictions_has_no_picture(
    planned: tuple[Job, JobForecast], tmp_path: Path, answer: str
) -> None:
    job, job_forecast = planned
    page = page_of(job, without_forecast(job_forecast, answer), tmp_path)
    assert not (tmp_path / PICTURE_FILE).exists()
    assert page.loaded == []
    assert "It is dense." in page.text


# -- MLflow ------------------------------------------------------------------------------------------------------------


def test_a_plan_is_in_mlflow_once_with_its_page_and_no_prompt(
    planned: tuple[Job, JobForecast], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, job_forecast = planned
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = run_of(job, job_forecast)
    first = recorder.keep(job, run, presentation(job_forecast))
    assert first.notes == ()
    assert recorder.keep(job, run, presentation(job_forecast)).mlflow_run == first.mlflow_run
    (held,) = sent_runs(job)
    assert (held.info.run_id, held.info.status) == (first.mlflow_run, "FINISHED")
    assert (held.data.tags["orderproof.run"], held.data.tags["advice"]) == (f"plan/{run.id}", "measure")
    assert (held.data.params["candidate"], held.data.params["order.params"]) == ("label", '{"method": "label"}')
    assert job_forecast.candidate is not None
    assert held.data.metrics["predicted_gain"] == job_forecast.candidate[1].gain == held.data.metrics["gain/label"]
    assert held.data.metrics["batches"] == 20

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking_uri(job.root))
    assert {file.path for file in client.list_artifacts(held.info.run_id)} == {"run.json", "page.html", PICTURE_FILE}
    folder = run_folder(job, "plan", run.id)
    sent = (folder / "run.json").read_text() + (folder / "page.html").read_text()
    texts = [json.loads(line)["text"] for line in job.prompts_path.read_text().splitlines()]
    assert not any(text in sent for text in texts)
