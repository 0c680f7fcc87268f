"""A trial reads what the last plan predicted for its own order; a prediction of anything else is not used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.spec import Job
from orderproof.measure.predicted_gain import PredictedGain, predicted_gain
from orderproof.runs.run import Basis, Run
from orderproof.runs.run_store import RECORD_FILE, write_run
from tests.support.fake_engine import MOE
from tests.support.trial_maker import make_job

NOON = "2026-11-29T12:00:00+00:00"
FIRST, SECOND = "20261129T120000Z-0001", "20261130T120000Z-0002"


def predictions(job: Job, **changes: Any) -> dict[str, Any]:
    """What a plan keeps for trials; `changes` replace whole fields."""
    return {
        "args": job.engine.args,
        "replicas": 1,
        "captured_share": 1.0,
        "orders": [
            {"spec": {"method": "file"}, "gain": 0.0, "low": -0.01, "high": 0.01},
            {"spec": {"method": "label"}, "gain": 0.2, "low": 0.18, "high": 0.22},
        ],
        **changes,
    }


def write_plan(job: Job, predicted: Any, run_id: str = FIRST) -> Path:
    """Keep a plan with these predictions. Returns its record."""
    basis = Basis(
        prompts=job.prompts,
        dataset_md5="md5",
        prompts_total=4,
        model=job.model,
        model_fingerprint=MOE.fingerprint,
        sampling=job.sampling,
    )
    run = Run(
        job=job.name, verb="plan", id=run_id, started_utc=NOON, ended_utc=NOON, answer="measure", sentence="measure",
        basis=basis, details={"predicted": predicted},
    )  # fmt: skip
    return write_run(job, run) / RECORD_FILE


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job whose last plan predicted a gain of 20 %."""
    made = make_job(tmp_path, order={"method": "label"})
    write_plan(made, predictions(made))
    return made


def test_the_prediction_of_the_jobs_own_order_is_read(job: Job) -> None:
    assert predicted_gain(job, MOE, "md5") == PredictedGain(gain=0.2, low=0.18, high=0.22, captured_share=1.0)


def test_the_newest_plan_counts(job: Job) -> None:
    changed = [{"spec": {"method": "label"}, "gain": 0.1, "low": 0.0, "high": 0.2}]
    write_plan(job, predictions(job, orders=changed, captured_share=0.5), SECOND)
    assert predicted_gain(job, MOE, "md5") == PredictedGain(gain=0.1, low=0.0, high=0.2, captured_share=0.5)


def test_a_plan_of_something_else_predicts_nothing(job: Job) -> None:
    other_order = job.model_copy(update={"order": job.order.model_copy(update={"window": 64})})
    other_batch = job.model_copy(update={"engine": job.engine.model_copy(update={"args": {"max_num_seqs": 4}})})
    two_replicas = job.model_copy(update={"engine": job.engine.model_copy(update={"replicas": 2})})
    longer = job.model_copy(update={"sampling": {**job.sampling, "max_tokens": 512}})
    assert predicted_gain(job, MOE, "other prompts") is None
    assert predicted_gain(longer, MOE, "md5") is None
    assert predicted_gain(job, replace(MOE, fingerprint="other"), "md5") is None
    assert predicted_gain(other_order, MOE, "md5") is None
    assert predicted_gain(other_batch, MOE, "md5") is None
    assert predicted_gain(two_replicas, MOE, "md5") is None


def test_without_a_plan_nothing_is_predicted(tmp_path: Path) -> None:
    assert predicted_gain(make_job(tmp_path), MOE, "md5") is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"verb": "plan"}'])
def test_a_record_that_cannot_be_read_predicts_nothing(job: Job, content: str) -> None:
    write_plan(job, predictions(job)).write_text(content)
    assert predicted_gain(job, MOE, "md5") is None


@pytest.mark.parametrize("predicted", [None, [], "much", {}, {"orders": []}])
def test_a_plan_without_whole_predictions_predicts_nothing(job: Job, predicted: Any) -> None:
    write_plan(job, predicted)
    assert predicted_gain(job, MOE, "md5") is None


@pytest.mark.parametrize("interval", [{}, {"gain": 0.2, "low": 0.1}, {"gain": "much", "low": 0, "high": 1}])
def test_a_prediction_without_its_interval_is_none(job: Job, interval: dict[str, Any]) -> None:
    write_plan(job, predictions(job, orders=[{"spec": {"method": "label"}, **interval}]))
    assert predicted_gain(job, MOE, "md5") is None


def test_what_is_read_is_what_a_plan_writes_as_json(job: Job) -> None:
    record = write_plan(job, predictions(job))
    assert json.loads(record.read_text())["details"]["predicted"]["orders"][1]["gain"] == 0.2
