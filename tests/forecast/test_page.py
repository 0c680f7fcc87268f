"""A plan as text and as a document: the answer first, and all that it rests on."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from orderproof.forecast import candidates
from orderproof.forecast.page import PAGE_FILE, PICTURE_FILE, as_json, write_forecast
from orderproof.forecast.planning import JobForecast, forecast_job
from orderproof.forecast.stored_prediction import read_stored_prediction
from orderproof.forecast.text import describe_job, describe_worth, lines, order_rows
from orderproof.job.spec import Job, OrderSpec
from tests.measure.test_page import Reader
from tests.support.captured_job import calibrated, make_job, model_of

WAYS = [OrderSpec(method="file"), OrderSpec(method="label"), OrderSpec(method="greedy")]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, JobForecast]:
    job = make_job(tmp_path_factory.mktemp("plan"))
    calibrated(job)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidates, "_specs", lambda job, prompts: WAYS)
        return job, forecast_job(job)


def test_the_answer_comes_first_and_its_reasons_follow(seen: tuple[Job, JobForecast]) -> None:
    _, job_forecast = seen
    first, reason, _, *rest = lines(job_forecast)
    said = "\n".join(rest)
    assert first == "it: MEASURE"
    assert "label, is predicted to gain +" in reason
    for fact in (
        "model      2 layers of 16 experts, top-2",
        "batch      8 sequences, 20 full batches",
        "order      today the file's own, which looks like a shuffle",
        "1.00 ms at batch 8 + 100.0 ± 2.0 µs per expert, 2.0 times what reading its bytes takes",
        "from the routes of 160 prompts, against shuffled and today's order (the file's own):",
        "greedy by the real routes",
        "greedy by embedding          not possible: the method `greedy` adds up experts",
        "looks at 5, 10 blocks",
        'jobs.it.order to {"method": "label"} in params.yaml, then run `orderproof measure it`',
    ):
        assert fact in said
    assert re.search(r"^  label +-\d+\.\d% +-\d+\.\d%   \+\d+\.\d% \(\+\d+\.\d% to \+\d+\.\d%\)", said, re.MULTILINE)
    assert "the trial pays back after" in said


def test_a_refused_job_has_no_next_step(seen: tuple[Job, JobForecast]) -> None:
    _, job_forecast = seen
    advice = replace(job_forecast.advice, answer="don't", reason="it is dense", candidate=None)
    model, facts = replace(job_forecast.model, moe=None, toy=True), replace(job_forecast.facts, moe=None)
    dense = replace(job_forecast, advice=advice, model=model, facts=facts, forecast=None, worth=None)
    first, reason, *rest = lines(dense)
    assert first.startswith("it: DON'T  [toy model")
    assert reason == "  it is dense"
    assert "dense" in rest[1]
    assert not any("next" in line or "worth" in line for line in rest)


def test_a_trial_that_never_pays_back_is_reported(seen: tuple[Job, JobForecast]) -> None:
    _, job_forecast = seen
    assert job_forecast.worth is not None
    assert "pays back after" in "\n".join(lines(job_forecast))
    said = "\n".join(lines(replace(job_forecast, worth=replace(job_forecast.worth, ordering_s=1e9))))
    assert "never pays back" in said
    assert "pays back after" not in said


def test_a_plan_for_machines_has_a_stable_shape(seen: tuple[Job, JobForecast]) -> None:
    told = json.loads(json.dumps(as_json(seen[1]), allow_nan=False))
    assert set(told) == {
        "schema", "job", "toy", "dataset_md5", "sampling", "left_out", "model", "facts", "looks", "detectable_gain",
        "advice", "order", "worth", "forecast",
    }  # fmt: skip
    assert (told["schema"], told["job"], told["order"]) == ("orderproof/plan/1", "it", {"method": "label"})
    assert told["advice"]["answer"] == "measure"
    assert [one["name"] for one in told["forecast"]["orders"]] == ["file", "label"]
    assert list(told["forecast"]["impossible"]) == ["greedy by embedding"]
    for one in told["forecast"]["orders"]:
        assert one["low"] <= one["gain"] <= one["high"]
        assert OrderSpec.model_validate(one["order"]) in WAYS
    assert 0 < told["worth"]["saved_low_s"] < told["worth"]["saved_s"] < told["worth"]["saved_high_s"]


def test_the_next_trial_reads_what_the_plan_foretold(seen: tuple[Job, JobForecast]) -> None:
    job, job_forecast = seen
    folder = write_forecast(job, job_forecast)
    assert (folder / PICTURE_FILE).read_bytes().startswith(b"\x89PNG")
    assert job_forecast.candidate is not None
    _, predicted = job_forecast.candidate
    foretold = read_stored_prediction(job, model_of(job), job_forecast.dataset_md5)
    assert foretold is not None
    assert (foretold.gain, foretold.low, foretold.high) == (predicted.gain, predicted.low, predicted.high)
    unlike = job.model_copy(update={"order": OrderSpec(method="length")})
    assert read_stored_prediction(unlike, model_of(job), job_forecast.dataset_md5) is None


def test_the_page_says_what_the_terminal_says_and_loads_nothing(seen: tuple[Job, JobForecast]) -> None:
    job, job_forecast = seen
    folder = write_forecast(job, job_forecast)
    page = Reader((folder / PAGE_FILE).read_text("utf-8"))
    assert all(source.startswith("data:image/png;base64,") for source in page.loaded)
    assert len(page.loaded) == 1
    assert "script" not in page.tags
    assert "Measure this order: label" in page.text
    assert job_forecast.forecast is not None
    said = [
        *describe_job(job_forecast),
        *describe_worth(job_forecast),
        *order_rows(job_forecast.forecast),
        job_forecast.left_out,
    ]
    for cell in (cell for row in said for cell in row):
        assert cell in page.text
    assert "greedy by embedding is not possible: the method `greedy` adds up experts" in page.text


def test_a_page_without_predictions_keeps_no_picture_of_an_earlier_plan(seen: tuple[Job, JobForecast]) -> None:
    job, job_forecast = seen
    write_forecast(job, job_forecast)
    advice = replace(job_forecast.advice, answer="don't", reason="it is dense", candidate=None)
    folder = write_forecast(job, replace(job_forecast, advice=advice, forecast=None, worth=None))
    page = Reader((folder / PAGE_FILE).read_text("utf-8"))
    assert not (folder / PICTURE_FILE).exists()
    assert page.loaded == []
    assert "Don't measure: no order is worth a trial here It is dense." in page.text
