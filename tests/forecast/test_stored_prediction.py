"""A trial reads what the plan foretold, and only a sound prediction refuses one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orderproof.forecast.stored_prediction import PLAN_FILE, StoredPrediction, plan_dir, read_stored_prediction
from orderproof.job.files import write_atomically
from orderproof.job.spec import Job
from orderproof.measure.preflight import foretold_refusal
from orderproof.measure.verdict import Rule
from tests.support.fake_engine import MOE
from tests.support.trial_maker import make_job


def job_with_plan(root: Path, **changes: Any) -> Job:
    job = make_job(root, order={"method": "label"})
    orders = [
        {"order": {"method": "file"}, "gain": 0.0, "low": -0.01, "high": 0.01},
        {"order": {"method": "label"}, "gain": 0.2, "low": 0.18, "high": 0.22},
    ]
    costs = {"model": MOE.fingerprint, "args": job.engine.args}
    plan = {
        "dataset_md5": "md5",
        "facts": {"prompts": 4, "replicas": 1},
        "sampling": job.sampling,
        "forecast": {"captured": 4, "costs": costs, "orders": orders},
        **changes,
    }
    write_atomically(plan_dir(job) / PLAN_FILE, json.dumps(plan))
    return job


def test_the_jobs_own_order_was_foretold(tmp_path: Path) -> None:
    assert read_stored_prediction(job_with_plan(tmp_path), MOE, "md5") == StoredPrediction(
        gain=0.2, low=0.18, high=0.22, captured_share=1.0
    )


def test_a_plan_of_something_else_foretells_nothing(tmp_path: Path) -> None:
    job = job_with_plan(tmp_path)
    other_order = job.model_copy(update={"order": job.order.model_copy(update={"window": 64})})
    other_batch = job.model_copy(update={"engine": job.engine.model_copy(update={"args": {"max_num_seqs": 4}})})
    two_replicas = job.model_copy(update={"engine": job.engine.model_copy(update={"replicas": 2})})
    longer = job.model_copy(update={"sampling": {**job.sampling, "max_tokens": 512}})
    assert read_stored_prediction(job, MOE, "other prompts") is None
    assert read_stored_prediction(longer, MOE, "md5") is None
    assert read_stored_prediction(job, replace(MOE, fingerprint="other"), "md5") is None
    assert read_stored_prediction(other_order, MOE, "md5") is None
    assert read_stored_prediction(other_batch, MOE, "md5") is None
    assert read_stored_prediction(two_replicas, MOE, "md5") is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"dataset_md5": "md5", "forecast": null}'])
def test_a_plan_that_foretold_nothing_or_is_broken_refuses_nothing(tmp_path: Path, content: str) -> None:
    job = job_with_plan(tmp_path)
    write_atomically(plan_dir(job) / PLAN_FILE, content)
    assert read_stored_prediction(job, MOE, "md5") is None


@pytest.mark.parametrize("interval", [{}, {"gain": 0.2, "low": 0.1}, {"gain": "much", "low": 0, "high": 1}])
def test_a_prediction_without_its_interval_refuses_nothing(tmp_path: Path, interval: dict[str, Any]) -> None:
    job = job_with_plan(tmp_path)
    plan = json.loads((plan_dir(job) / PLAN_FILE).read_text())
    plan["forecast"]["orders"] = [{"order": {"method": "label"}, **interval}]
    write_atomically(plan_dir(job) / PLAN_FILE, json.dumps(plan))
    assert read_stored_prediction(job, MOE, "md5") is None


@pytest.mark.parametrize(
    ("gain", "high", "detectable", "reason"),
    [
        (0.01, 0.02, None, "surely below the minimum effect of 3%"),
        (0.05, 0.06, 0.08, "the smallest gain that a trial detects here is 8.0%"),
        (0.05, 0.06, 0.04, None),
        (0.02, 0.04, None, None),
    ],
)
def test_a_trial_that_was_foretold_to_show_nothing_is_refused(
    gain: float, high: float, detectable: float | None, reason: str | None
) -> None:
    refusal = foretold_refusal(StoredPrediction(gain=gain, low=0.0, high=high), Rule(), detectable)
    assert (refusal is None) == (reason is None)
    assert reason is None or reason in (refusal or "")


def test_the_minimum_effect_is_told_as_it_was_registered() -> None:
    refusal = foretold_refusal(StoredPrediction(gain=0.01, low=0.0, high=0.02), Rule(min_effect=0.025), None)
    assert "below the minimum effect of 2.5% " in (refusal or "")


def test_a_prediction_from_a_sample_is_a_low_one_and_refuses_nothing() -> None:
    little = {"gain": 0.0, "low": -0.01, "high": 0.01}
    assert foretold_refusal(StoredPrediction(**little), Rule(), None)
    assert foretold_refusal(StoredPrediction(**little, captured_share=0.99), Rule(), None) is None


def test_where_nothing_was_foretold_nothing_is_refused() -> None:
    assert foretold_refusal(None, Rule(), 0.5) is None
