"""What becomes of a verdict, on real files; passes are synthetic and MLflow takes everything."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.spec import Job
from orderproof.measure import steps
from orderproof.measure.promote import evidence_of
from orderproof.measure.steps import Outcome
from orderproof.measure.trial import no_progress
from orderproof.measure.trial_store import Trial
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import tokenize
from orderproof.runs.dvc import InputsChanged
from orderproof.runs.inputs import take_inputs
from orderproof.runs.promotion import PromotionError, demote, read_promotion
from orderproof.runs.run import Run
from orderproof.runs.run_store import newest_run, read_run, read_runs
from tests.support import captured_job
from tests.support.fake_engine import FakeEngine
from tests.support.measured_job import (
    FIRST,
    SECOND,
    MeasuredJob,
    edit_model,
    edit_params,
    edit_prompts,
    make_measured_job,
    outcome_of,
    verdict_of,
    without_trackers,
)
from tests.support.trial_maker import make_trial, trial_folder

ENGINE = {"args": {"max_num_seqs": 8}, "env": {}, "command": [], "mode": "eager", "max_num_seqs": 8}
BY_ROUTES = {"method": "cluster", "signal": "predicted", "clusters": 2}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MeasuredJob:
    without_trackers(monkeypatch)
    return make_measured_job(tmp_path)


def finish(measured: MeasuredJob, trial: Trial, notes: tuple[str, ...] = ()) -> Run:
    """All that follows the last block."""
    outcome = Outcome(trial, verdict_of(trial), notes)
    run = steps.report(measured.plan, outcome, "flow-1")
    return steps.promote(measured.plan, run, outcome, measured.inputs, measured.plan.prompts)


def evidence(trial: Trial) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(trial.folder.rglob("*")) if path.is_file()}


# -- a verdict and its order -------------------------------------------------------------------------------------------


def test_a_promotion_is_on_record_with_its_order_and_its_evidence(measured: MeasuredJob) -> None:
    trial = measured.trial()
    run = finish(measured, trial)
    promotion = read_promotion(measured.job)
    assert promotion is not None
    assert (promotion.promoted, promotion.trial, promotion.mlflow_run) == (True, FIRST, "run-1")
    assert (run.answer, run.id, run.verb, run.exit_code) == ("promote", FIRST, "measure", 0)
    assert (run.details["promoted"], run.details["order"]) == (True, "label")
    assert {"manifest.json", "passes.jsonl", "verdict.json", "run.json", "page.html"} <= {
        path.name for path in trial.folder.iterdir()
    }
    kept = read_run(trial.folder / "run.json")
    assert (kept.details, kept.prefect_run) == (run.details, "flow-1")
    assert measured.job.paths.verb_dir("lossy").is_dir(), "an output of the stage, empty or not"


def test_the_figures_of_the_run_are_those_of_the_verdict(measured: MeasuredJob) -> None:
    trial = measured.trial(references=True)
    verdict = verdict_of(trial)
    assert verdict.outputs is not None
    run = finish(measured, trial)
    figures = run.as_json()["figures"]
    assert (figures["gain"], figures["gain_low"], figures["gain_high"]) == (
        verdict.gain,
        verdict.gain_low,
        verdict.gain_high,
    )
    assert (figures["blocks"], figures["detectable_gain"]) == (verdict.blocks, verdict.detectable_gain)
    assert (figures["output_diff_rate"], figures["output_diff_floor"]) == (verdict.outputs.d_ab, verdict.outputs.d_aa)
    assert "score_difference" in figures
    assert run.details["verdict"] == verdict.model_dump(mode="json")
    assert run.basis.dataset_md5 == measured.plan.dataset_md5
    assert run.started_utc < run.ended_utc


def test_a_keep_leaves_the_files_order(measured: MeasuredJob) -> None:
    run = finish(measured, measured.trial(gain=-0.05))
    assert (run.answer, run.exit_code, run.details["promoted"], run.details["order"]) == ("keep", 10, False, "file")


def test_an_aa_test_promotes_nothing_and_is_kept_apart(measured: MeasuredJob) -> None:
    plan = replace(measured.plan, aa=True)
    trial = make_trial(trial_folder(plan.job, verb="aa"), aa=True, gain=0.2)
    outcome = outcome_of(trial)
    run = steps.report(plan, outcome, None)
    run = steps.promote(plan, run, outcome, measured.inputs, plan.prompts)
    assert (run.verb, len(run.notes)) == ("aa", 1)
    assert measured.order_files() == {}
    assert [kept.id for kept in read_runs(plan.job, "aa")] == [FIRST]
    assert read_runs(plan.job, "measure") == []


@pytest.mark.parametrize("stage", [None, "measure@six-domains"])
@pytest.mark.parametrize("edit", [edit_params, edit_prompts, edit_model])
@pytest.mark.parametrize("gain", [0.06, -0.05])
def test_when_an_input_changed_during_the_trial_no_order_is_written(
    measured: MeasuredJob, monkeypatch: pytest.MonkeyPatch, stage: str | None, edit: Callable[[Job], None], gain: float
) -> None:
    if stage:
        monkeypatch.setenv("DVC_STAGE", stage)
    trial = measured.trial(gain=gain)
    edit(measured.job)
    with pytest.raises((InputsChanged, PromotionError)):
        finish(measured, trial)
    assert measured.order_files() == {}


def test_whatever_fails_in_pictures_page_or_mlflow_is_a_note_and_the_order_is_promoted(
    measured: MeasuredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no room on the canvas")

    for where in ("measure.pictures.draw", "measure.page.verdict_page", "runs.recorder.send_run"):
        monkeypatch.setattr(f"orderproof.{where}", fails)
    run = finish(measured, measured.trial())
    promotion = read_promotion(measured.job)
    assert promotion is not None
    assert promotion.promoted
    assert ("page" in run.files, run.mlflow_run) == (False, None)
    assert sum("no room on the canvas" in note for note in run.notes) == 3
    assert any("orderproof log six-domains" in note for note in run.notes)


# -- doing it again ----------------------------------------------------------------------------------------------------


def test_recording_a_verdict_again_changes_nothing(measured: MeasuredJob) -> None:
    trial = measured.trial()
    finish(measured, trial)
    before, files = evidence(trial), measured.order_files()
    run = finish(measured, trial, ("it stands",))
    assert evidence(trial) == before
    assert measured.order_files() == files
    assert "it stands" in run.notes


def test_a_tracker_that_is_down_when_a_verdict_stands_does_not_lose_its_run(
    measured: MeasuredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = measured.trial()
    finish(measured, trial)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("orderproof.runs.recorder.send_run", lambda *_: 1 / 0)
    assert finish(measured, trial).mlflow_run is None
    promotion = read_promotion(measured.job)
    assert promotion is not None
    assert promotion.mlflow_run == "run-1"


def test_a_promotion_that_was_demoted_is_never_written_again_by_its_trial(measured: MeasuredJob) -> None:
    trial = measured.trial()
    finish(measured, trial)
    demote(measured.job, measured.plan.prompts.ids, "a new model next week")
    files = measured.order_files()
    run = finish(measured, trial)
    assert any("demoted" in note for note in run.notes)
    assert run.details["promoted"] is False
    assert measured.order_files() == files


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_refusal_is_on_record_and_leaves_the_files_order(measured: MeasuredJob) -> None:
    run = steps.refuse(measured.job, measured.inputs, "the model is dense", "flow-1")
    assert (run.answer, run.exit_code, run.verb, run.details["promoted"]) == ("refused", 12, "measure", False)
    kept = newest_run(measured.job, "measure")
    assert kept is not None
    assert (kept.id, kept.answer, kept.prefect_run) == (run.id, "refused", "flow-1")
    promotion = read_promotion(measured.job)
    assert promotion is not None
    assert (promotion.promoted, promotion.trial) == (False, None)
    assert promotion.verdict is not None
    assert promotion.verdict.verdict == "refused"


def test_a_plan_that_refuses_again_leaves_the_order_files_as_they_are(
    measured: MeasuredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = iter(("run-1", "run-2"))
    monkeypatch.setattr("orderproof.runs.recorder.send_run", lambda *_: next(runs))
    steps.refuse(measured.job, measured.inputs, "the model is dense", None)
    files = measured.order_files()
    assert json.loads(files["order.json"])["promoted"] is False
    steps.refuse(measured.job, measured.inputs, "the model is dense", None)
    assert measured.order_files() == files


def test_a_refusal_leaves_a_promoted_order_in_use(measured: MeasuredJob) -> None:
    finish(measured, measured.trial())
    files = measured.order_files()
    run = steps.refuse(measured.job, measured.inputs, "nothing to gain", None)
    assert (run.details["promoted"], run.details["order"]) == (True, "label")
    assert measured.order_files() == files


@pytest.mark.parametrize("edit", [edit_params, edit_prompts, edit_model])
def test_when_an_input_changed_no_refusal_decides_the_order(measured: MeasuredJob, edit: Callable[[Job], None]) -> None:
    edit(measured.job)
    with pytest.raises((InputsChanged, PromotionError)):
        steps.refuse(measured.job, measured.inputs, "the model is dense", None)
    assert measured.order_files() == {}


# -- about an order that is promoted already ---------------------------------------------------------------------------


def test_an_order_that_a_new_trial_does_not_confirm_is_named_with_the_way_back(measured: MeasuredJob) -> None:
    finish(measured, measured.trial())
    run = finish(measured, measured.trial(SECOND, gain=-0.05))
    assert run.answer == "keep"
    assert f"(trial {FIRST})" in run.notes[0]
    assert "`orderproof demote six-domains`" in run.notes[0]
    promotion = read_promotion(measured.job)
    assert promotion is not None
    assert promotion.trial == FIRST


@pytest.mark.parametrize(
    ("promoted_for", "what"),
    [({"engine": ENGINE}, "model"), ({"engine": {**ENGINE, "args": {"max_num_seqs": 16}}}, "engine settings")],
)
def test_a_promotion_for_another_model_or_engine_is_named(
    measured: MeasuredJob, promoted_for: dict[str, Any], what: str
) -> None:
    model = {"model": {"fingerprint": measured.plan.model.fingerprint, "toy": False}}
    finish(measured, measured.trial(**promoted_for, **({} if what == "model" else model)))
    run = finish(measured, measured.trial(SECOND, gain=-0.05, engine=ENGINE, **model))
    assert any(f"promoted for another {what}" in note or f"promoted for other {what}" in note for note in run.notes)


def test_a_promotion_for_the_same_model_and_engine_is_not_questioned(measured: MeasuredJob) -> None:
    model = {"model": {"fingerprint": measured.plan.model.fingerprint, "toy": False}}
    finish(measured, measured.trial(engine=ENGINE, **model))
    run = finish(measured, measured.trial(SECOND, gain=-0.05, engine=ENGINE, **model))
    assert not any("promoted for" in note for note in run.notes)


def test_evidence_before_a_trial_names_its_verdict_alone(measured: MeasuredJob) -> None:
    verdict = verdict_of(measured.trial())
    before = evidence_of(None, verdict)
    assert before.verdict is not None
    assert (before.verdict.verdict, before.trial, before.model) == ("promote", None, None)


# -- routes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "kept"), [(BY_ROUTES, True), ({"method": "label"}, False)])
def test_a_trial_keeps_what_its_order_was_made_from_and_the_next_one_finds_it(
    tmp_path: Path, order: dict[str, Any], kept: bool
) -> None:
    job = captured_job.make_job(tmp_path, captured=64, order=order)
    captured_job.calibrated(job)
    prompts, inputs = tokenize(job, read_prompts(job.prompts_path)), take_inputs(job)
    plan = steps.make_plan(job, prompts, inputs, False)

    class NoProgress:
        update = staticmethod(no_progress)

    begun = steps.warm_up(plan, FakeEngine(), NoProgress())  # type: ignore[arg-type]
    names = ("routes.parquet", "predictor.npz", "step_costs.json")
    captured = {name: (job.data_dir / name).read_bytes() for name in names}
    assert (begun.folder / "captured").exists() == kept
    if kept:
        for name in names:
            (job.data_dir / name).unlink()
        assert steps.make_plan(job, prompts, inputs, False).chosen.sha256 == plan.chosen.sha256
        assert {name: (job.data_dir / name).read_bytes() for name in names} == captured
