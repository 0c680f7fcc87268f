"""What MLflow gets of a trial: one child for each pass, from the trial's folder alone."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.spec import Job
from orderproof.measure.evaluate import judge
from orderproof.measure.tracking import tracking_of
from orderproof.measure.trial_store import Trial
from orderproof.measure.verdict import Verdict
from orderproof.outputs.passes import CANDIDATE, SHUFFLED
from orderproof.runs.mlflow_run import Child, Tracking
from orderproof.runs.run import Figure, Run
from tests.support.run_maker import make_job_run
from tests.support.trial_maker import make_job, make_trial, trial_folder

METRICS = {"throughput_req_s", "throughput_tok_s", "wall_s", "time_per_batch_ms", "cost_per_1k_requests"}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return make_job(tmp_path, reporting={"price_per_hour": 3.6})


def verdict_of(trial: Trial) -> Verdict:
    verdict = judge(trial)
    assert verdict is not None
    assert verdict.outputs is not None
    return verdict


def trial_run(job: Job, trial: Trial, **changes: Any) -> Run:
    verb = "aa" if trial.manifest.aa else "measure"
    return make_job_run(job, trial.manifest.trial, verb, answer="promote", **changes)


def tracked(job: Job, **fields: Any) -> tuple[Trial, Tracking]:
    trial = make_trial(trial_folder(job), **fields)
    return trial, tracking_of(job, trial_run(job, trial))


def state(child: Child) -> str:
    return child.tags["state"]


def test_every_pass_is_a_child_in_the_order_in_which_they_ran(job: Job) -> None:
    trial, tracking = tracked(job, blocks=5, repeated_block=2)
    assert [child.key for child in tracking.children] == [timed.pass_id for timed in trial.passes]
    assert len(tracking.children) == 5 * 2
    assert all(child.end_ms > child.start_ms for child in tracking.children)


def test_every_pass_that_counts_has_the_same_metrics_and_its_arm_as_a_parameter(job: Job) -> None:
    trial, tracking = tracked(job, blocks=5)
    counted = [child for child in tracking.children if state(child) == "counted"]
    assert len(counted) == 10
    for child in counted:
        known = {name for name, value in child.metrics.items() if value is not None}
        assert known == METRICS | {"output_diff_rate"}
        assert child.params["arm"] == child.tags["arm"]
    timed = {timed.pass_id: timed for timed in trial.passes}["b03-candidate"]
    child = next(child for child in counted if child.key == "b03-candidate")
    assert child.metrics["throughput_req_s"] == timed.throughput_req_s
    # 3.60 an hour is 0.001 a second
    assert child.metrics["cost_per_1k_requests"] == pytest.approx(1000 * 0.001 * timed.wall_s / timed.requests)
    assert child.series["step_time_ms"] == timed.step_ms_series


def test_names_say_block_and_arm(job: Job) -> None:
    _, tracking = tracked(job, blocks=5)
    names = {child.name for child in tracking.children}
    assert {"b01 control", "b03 candidate"} <= names


def test_what_the_machine_did_is_context_in_the_tags(job: Job) -> None:
    _, tracking = tracked(job, blocks=1)
    assert {"steal", "probe_s", "load", "throttled_pairs"} <= tracking.children[0].tags.keys()


def test_the_passes_rates_of_changed_outputs_are_the_trials_on_average(job: Job) -> None:
    trial, tracking = tracked(job, blocks=5, candidate_churn=0.2)
    outputs = verdict_of(trial).outputs
    rates = [
        child.metrics["output_diff_rate"]
        for child in tracking.children
        if (child.tags["arm"], state(child)) == (CANDIDATE, "counted")
    ]
    assert outputs is not None
    assert statistics.fmean(rate for rate in rates if rate is not None) == pytest.approx(outputs.d_ab)
    assert len(rates) == 5


def test_where_shuffles_are_the_third_arm_the_passes_rates_are_against_them_as_the_trials_is(job: Job) -> None:
    trial, tracking = tracked(job, third_arm=True, candidate_churn=0.2)
    outputs = verdict_of(trial).outputs
    children = {child.key: child.metrics["output_diff_rate"] for child in tracking.children}
    rates = {arm: [children[block.passes[arm].pass_id] for block in trial.blocks()] for arm in (CANDIDATE, SHUFFLED)}
    assert outputs is not None
    assert statistics.fmean(rate for rate in rates[CANDIDATE] if rate is not None) == pytest.approx(outputs.d_ab)
    assert statistics.fmean(rate for rate in rates[SHUFFLED] if rate is not None) == pytest.approx(outputs.d_aa)


def test_without_a_price_no_cost_is_claimed(tmp_path: Path) -> None:
    _, tracking = tracked(make_job(tmp_path), blocks=1)
    assert all(child.metrics["cost_per_1k_requests"] is None for child in tracking.children)


def test_the_parent_has_the_arms_and_the_registered_rule(job: Job) -> None:
    trial, tracking = tracked(job, blocks=1)
    params = tracking.params
    assert (params["candidate"], params["max_num_seqs"], params["mode"]) == ("cluster", 8, "eager")
    assert "shuffled" in params["control"]
    assert (params["rule.alpha"], params["rule.margin"]) == (trial.manifest.rule.alpha, trial.manifest.rule.margin)
    assert (tracking.tags["trial"], tracking.tags["attempt"]) == (trial.manifest.trial, "1")
    assert tracking_of(job, trial_run(job, trial)).params == params


def test_the_evidence_is_sent_and_the_outputs_only_as_generated_text(job: Job) -> None:
    trial, tracking = tracked(job, blocks=1)
    assert {path.name for path in tracking.files} == {"verdict.json", "manifest.json", "slices.jsonl", "passes.jsonl"}
    assert tracking.text_folder == trial.folder / "tokens"


def test_a_name_has_the_answer_and_the_gain(job: Job) -> None:
    trial = make_trial(trial_folder(job), blocks=1)
    assert tracking_of(job, trial_run(job, trial)).name == "promote +6 % · six-domains · 2026-11-29 14:46"
    lost = trial_run(job, trial, figures=(Figure(name="gain", value=-0.001),))
    assert tracking_of(job, lost).name.startswith("promote +0 % ")


def test_an_aa_test_is_named_as_one(job: Job) -> None:
    trial = make_trial(trial_folder(job, verb="aa"), blocks=0, aa=True)
    assert tracking_of(job, trial_run(job, trial)).name.startswith("A/A ")


def test_a_refusal_before_a_trial_has_no_passes(job: Job) -> None:
    tracking = tracking_of(job, make_job_run(job, verb="measure", answer="refused", figures=()))
    assert (tracking.name, tracking.children, tracking.files) == (
        "refused · six-domains · 2026-11-29 14:46",
        (),
        (),
    )
