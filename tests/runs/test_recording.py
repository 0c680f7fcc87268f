"""What becomes of a verdict, on real files, MLflow and DVC; passes are synthetic."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from orderproof.job.hashing import md5_of
from orderproof.job.model import read_model
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.measure.evaluate import judge
from orderproof.measure.outcome import Outcome, outcome_of
from orderproof.measure.plan import Plan
from orderproof.measure.reusable_verdict import find_reusable_verdict
from orderproof.measure.trial_store import Trial, write_verdict
from orderproof.measure.verdict import Rule
from orderproof.orders.order import Order
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.runs import publish, recording
from orderproof.runs.dvc import DvcError, InputsChanged, Recorded
from orderproof.runs.promotion import PromotionError, read_promotion
from tests.support.trial_maker import LABELS, make_trial

PROMPTS = 48
FIRST, SECOND = "20261129T144640Z-3f9a", "20261130T144640Z-77aa"
PARAMS = {
    "defaults": {"engine": {"args": {"max_num_seqs": 8}}},
    "jobs": {"six-domains": {"prompts": "prompts.jsonl", "model": "model", "order": {"method": "label"}}},
}


@dataclass(frozen=True)
class Project:
    """A job that is about to be measured."""

    plan: Plan
    inputs: recording.Inputs

    @property
    def job(self) -> Job:
        return self.plan.job

    def trial(self, name: str = FIRST, **how: Any) -> Trial:
        """As `measure` leaves it when it is stopped on reaching the verdict."""
        order = self.plan.chosen
        registered = {"candidate": order.record(), "dataset_md5": order.dataset_md5, "settings": self.plan.settings}
        return make_trial(self.job.reports_dir / name, prompts=PROMPTS, **{**registered, **how})

    def record(self, trial: Trial) -> Outcome:
        """Without the pictures, which take a second."""
        outcome = replace(reached(trial), mlflow_run="run-1")
        write_verdict(trial, outcome.verdict)
        return recording.record(self.plan, outcome, self.inputs, self.plan.prompts, trial)

    def order_files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.job.data_dir.glob("order.*")}


def reached(trial: Trial) -> Outcome:
    verdict = judge(trial)
    assert verdict is not None
    return outcome_of(trial, verdict)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setattr(
        "orderproof.runs.trial_tracking.log_trial", lambda *_, **__: "run-1"
    )  # test_tracking.py asks it
    YAML(typ="safe", pure=True).dump(PARAMS, tmp_path / "params.yaml")
    ids = [f"p{i:05d}" for i in range(PROMPTS)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"id": i, "text": "x"}) + "\n" for i in ids))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    job = load_job(tmp_path / "params.yaml", "six-domains")
    grouped = np.argsort(np.arange(PROMPTS) % len(LABELS), kind="stable")
    md5 = md5_of(job.prompts_path)
    plan = Plan(
        job=job,
        model=read_model(job.model_path, job.model),
        prompts=_tokenized(ids),
        dataset_md5=md5,
        chosen=Order(grouped, "label", {}, {}, md5),
        orders={},
        control_why="",
        rule=Rule(),
        question="the question",
        attempt=1,
        coin_seed=0,
        shuffle_seeds=(),
        noise_sd=None,
        detectable_excess_before=None,
        placebo=False,
        foretold=None,
        refusal=None,
    )
    return Project(plan, recording.inputs_of(job))


def _tokenized(ids: list[str]) -> TokenizedPrompts:
    nothing: list[Any] = [None] * len(ids)
    return TokenizedPrompts(
        ids=ids,
        lines=np.arange(1, len(ids) + 1),
        labels=nothing,
        samplings=nothing,
        references=nothing,
        rendered=["x"] * len(ids),
        tokens=np.zeros(len(ids), np.int32),
        offsets=np.arange(len(ids) + 1),
    )


# -- inputs that changed -----------------------------------------------------------------------------------------------


def edit_params(project: Project) -> None:
    params = project.job.root / "params.yaml"
    params.write_text(params.read_text().replace("max_num_seqs: 8", "max_num_seqs: 9"))


def edit_prompts(project: Project) -> None:
    with open(project.job.prompts_path, "a") as prompts:
        prompts.write('{"id": "late", "text": "x"}\n')


def edit_model(project: Project) -> None:
    (project.job.model_path / "config.json").write_text('{"hidden_size": 1}')


@pytest.mark.parametrize("stage", [None, "measure@six-domains"])
@pytest.mark.parametrize("edit", [edit_params, edit_prompts, edit_model])
@pytest.mark.parametrize("gain", [0.06, -0.05])
def test_when_an_input_changed_during_the_trial_nothing_is_pinned(
    project: Project, monkeypatch: pytest.MonkeyPatch, stage: str | None, edit: Any, gain: float
) -> None:
    if stage:
        monkeypatch.setenv("DVC_STAGE", stage)
    trial = project.trial(gain=gain)
    edit(project)
    with pytest.raises((InputsChanged, PromotionError), match="measured"):
        recording.record(project.plan, reached(trial), project.inputs, project.plan.prompts, trial)
    assert project.order_files() == {}


# -- what fails beside the verdict -------------------------------------------------------------------------------------


def test_whatever_fails_in_pictures_page_or_mlflow_is_a_note_and_the_order_is_pinned(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no room on the canvas")

    for where in ("measure.figures.draw", "measure.page.write_page", "runs.trial_tracking.log_trial"):
        monkeypatch.setattr(f"orderproof.{where}", fails)
    trial = project.trial()
    outcome = recording.report(project.job, trial, reached(trial), prefect_run=None)
    outcome = recording.record(project.plan, outcome, project.inputs, project.plan.prompts, trial)
    assert outcome.promotion is not None
    assert outcome.promotion.promoted
    assert (outcome.page, outcome.mlflow_run) == (None, None)
    assert sum("no room on the canvas" in note for note in outcome.notes) == 3
    assert any(f"orderproof log six-domains --trial {FIRST}" in note for note in outcome.notes)


def test_a_dvc_that_fails_is_a_note_because_the_order_is_pinned(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise DvcError("`dvc commit` failed: ERROR: no space left")

    monkeypatch.setattr("orderproof.runs.dvc.record_in_dvc", fails)
    outcome = project.record(project.trial())
    assert any("no space left" in note for note in outcome.notes)
    assert read_promotion(project.job) == outcome.promotion


def test_a_dvc_that_fails_leaves_the_order_demoted_and_is_a_note(project: Project) -> None:
    project.record(project.trial())
    (project.job.root / "dvc.lock").write_text("stages: [")
    back, notes = recording.demote(project.job, project.plan.prompts.ids, "a new model next week")
    assert read_promotion(project.job) == back
    assert not back.promoted
    assert any("dvc.lock is not readable" in note and "`dvc commit --force measure@six-domains`" in note
               for note in notes)  # fmt: skip


@pytest.mark.parametrize("why", ["", "the remote is gone"])
def test_outputs_that_were_recorded_and_not_published_are_not_said_to_be_unrecorded(
    project: Project, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def publishes(*_: Any) -> publish.Published:
        if why:
            raise DvcError(why)
        return publish.Published()

    monkeypatch.setattr("orderproof.runs.dvc.record_in_dvc", lambda *_: Recorded("generate@it", True))
    monkeypatch.setattr("orderproof.runs.publish.publish", publishes)
    notes = recording.record_outputs(project.job, "generate", project.inputs, {}, "made")
    assert notes == ([f"not published: {why}"] if why else [])


def test_inside_a_stage_nobody_is_told_that_outputs_are_not_recorded(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_STAGE", "generate@six-domains")
    assert recording.record_outputs(project.job, "generate", project.inputs, {}, "made") == []


# -- verdicts that were reached and lost -------------------------------------------------------------------------------


def test_a_promotion_that_was_reached_and_not_pinned_is_pinned_by_the_next_measure(project: Project) -> None:
    trial = project.trial()
    recording.report(project.job, trial, reached(trial), prefect_run=None)  # and then the process was killed
    found = find_reusable_verdict(project.plan, let_stand=False)
    assert found is not None
    outcome = recording.record(project.plan, found[1], project.inputs, project.plan.prompts, found[0])
    assert (outcome.trial, outcome.verdict.verdict) == (FIRST, "promote")
    assert "was stopped then: not measured again" in outcome.notes[0]
    record = read_promotion(project.job)
    assert record is not None
    assert (record.promoted, record.trial) == (True, FIRST)
    assert find_reusable_verdict(project.plan, let_stand=False) is None, "now it is measured anew"


@pytest.mark.parametrize("gain", [0.06, -0.05])
def test_a_verdict_that_never_reached_its_file_is_not_measured_again(project: Project, gain: float) -> None:
    trial = project.trial(gain=gain)
    found = find_reusable_verdict(project.plan, let_stand=False)
    assert found is not None
    assert found[1].verdict == judge(trial)
    project.record(trial)
    assert find_reusable_verdict(project.plan, let_stand=False) is None


def test_a_trial_without_a_verdict_is_measured_anew(project: Project) -> None:
    project.trial(blocks=3)
    assert find_reusable_verdict(project.plan, let_stand=True) is None


def test_a_promotion_that_was_taken_back_is_never_pinned_again(project: Project) -> None:
    trial = project.trial()
    project.record(trial)
    recording.demote(project.job, project.plan.prompts.ids, "a new model next week")
    assert find_reusable_verdict(project.plan, let_stand=False) is None
    files = project.order_files()
    outcome = project.record(trial)
    assert any("taken back" in note for note in outcome.notes)
    assert project.order_files() == files


# -- verdicts that stand -----------------------------------------------------------------------------------------------


def test_a_verdict_stands_where_nothing_changed_and_recording_it_again_changes_nothing(project: Project) -> None:
    project.record(project.trial())
    files, verdict = project.order_files(), (project.job.reports_dir / "verdict.json").read_bytes()
    found = find_reusable_verdict(project.plan, let_stand=True)
    assert found is not None
    assert "it stands unmeasured" in found[1].notes[0]
    outcome = recording.report(project.job, *found, prefect_run=None)
    recording.record(project.plan, outcome, project.inputs, project.plan.prompts, found[0])
    assert project.order_files() == files
    assert (project.job.reports_dir / "verdict.json").read_bytes() == verdict


def test_a_tracker_that_is_down_when_a_verdict_stands_does_not_forget_its_run(project: Project) -> None:
    trial = project.trial()
    project.record(trial)
    again = recording.record(project.plan, reached(trial), project.inputs, project.plan.prompts, trial)
    assert again.promotion is not None
    assert again.promotion.mlflow_run == "run-1"


def test_other_settings_an_invalid_verdict_and_a_placebo_never_stand(project: Project) -> None:
    trial = project.trial()
    project.record(trial)
    stricter = project.plan.job.model_copy(update={"outputs": "proven"})
    assert find_reusable_verdict(replace(project.plan, job=stricter), let_stand=True) is None
    assert find_reusable_verdict(replace(project.plan, placebo=True), let_stand=True) is None
    spoilt = make_trial(
        project.job.reports_dir / SECOND,
        prompts=PROMPTS,
        noise=0.0,
        gain=0.0,
        settings=project.plan.settings,
        candidate=project.plan.chosen.record(),
    )
    assert reached(spoilt).verdict.verdict == "invalid"
    assert find_reusable_verdict(project.plan, let_stand=True) is None


def test_a_plan_that_refuses_again_rewrites_nothing(project: Project) -> None:
    plan = replace(project.plan, refusal="the model is dense")
    for _ in range(2):
        outcome = recording.record(plan, recording.refuse(plan), project.inputs, plan.prompts)
        files = project.order_files()
    assert (outcome.verdict.verdict, outcome.trial) == ("refused", None)
    assert json.loads(files["order.json"])["promoted"] is False
    recording.record(plan, recording.refuse(plan), project.inputs, plan.prompts)
    assert project.order_files() == files


# -- about an order that is promoted already ---------------------------------------------------------------------------


def test_an_order_that_does_not_carry_again_is_told_with_the_way_back(project: Project) -> None:
    project.record(project.trial())
    outcome = project.record(project.trial(SECOND, gain=-0.05))
    assert outcome.verdict.verdict == "keep"
    assert (
        f"the promoted order (trial {FIRST}) did not carry again: `orderproof demote six-domains`" in outcome.notes[0]
    )
    assert outcome.promotion is not None
    assert outcome.promotion.trial == FIRST


def test_a_promotion_for_another_model_or_engine_is_told(project: Project) -> None:
    here = {"model": {"fingerprint": project.plan.model.fingerprint, "toy": False}}
    engine = {"args": {"max_num_seqs": 8}, "env": {}, "command": [], "mode": "eager", "max_num_seqs": 8}
    project.record(project.trial(engine=engine))  # of the synthetic trials' model
    outcome = project.record(project.trial(SECOND, gain=-0.05, engine=engine, **here))
    assert "it was promoted for another model than the present one" in outcome.notes


def test_a_promotion_for_other_engine_settings_is_told(project: Project) -> None:
    here = {"model": {"fingerprint": project.plan.model.fingerprint, "toy": False}}
    engine = {"args": {"max_num_seqs": 16}, "env": {}, "command": [], "mode": "eager", "max_num_seqs": 16}
    project.record(project.trial(engine=engine, **here))
    outcome = project.record(project.trial(SECOND, gain=-0.05, **here))
    assert "it was promoted for other engine settings than the present ones" in outcome.notes


def test_without_git_evidence_names_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert recording.git_revision(tmp_path) is None
