"""The steps of a lossy comparison: the order that it takes, and what is kept and recorded of it."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job, OrderSpec
from orderproof.lossy.report import LossyReport, find_report
from orderproof.lossy.steps import choose_order, report
from orderproof.orders.registry import make_order
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import tokenize
from orderproof.runs import recorder
from orderproof.runs.dvc import InputsChanged
from orderproof.runs.inputs import take_inputs
from orderproof.runs.promotion import demote, write_promotion
from orderproof.runs.promotion_record import Evidence
from orderproof.runs.recorder import PAGE_FILE
from orderproof.runs.route_artifacts import FOLDER
from orderproof.runs.run_store import RECORD_FILE, read_runs, run_folder
from orderproof.signals.served_model import ROUTES_FILE
from tests.support.arm_engine import ArmEngine, compare_arms
from tests.support.batches import TRIAL
from tests.support.captured_job import make_job
from tests.support.trial_maker import trial_folder

SIX = "measure@six-domains"
NOON = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)


def test_an_order_by_routes_is_made_on_a_clone_that_has_them_with_its_trial_alone(tmp_path: Path) -> None:
    job = make_job(tmp_path, captured=40, order={"method": "cluster", "signal": "observed", "clusters": 2})
    kept = trial_folder(job) / FOLDER
    kept.mkdir(parents=True)
    for name in (ROUTES_FILE, "predictor.npz"):
        (job.data_dir / name).rename(kept / name)
    prompts = tokenize(job, read_prompts(job.prompts_path))
    assert choose_order(job, prompts, md5_of(job.prompts_path)).method == "cluster"


# -- keeping it as evidence, under real DVC and git --------------------------------------------------------------------


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker that takes every run."""
    monkeypatch.setattr(recorder, "send_run", lambda job, run, tracking: f"mlflow {run.id}")


@pytest.fixture
def accepted(project: Any) -> Job:
    """Measured, promoted and recorded; and then a person accepted."""
    job: Job = project.job()
    rows = [json.loads(line) for line in job.prompts_path.read_text().splitlines()]
    order = make_order(job.order.model_copy(update={"method": "shuffled"}), rows, md5_of(job.prompts_path))
    write_promotion(job, order, [row["id"] for row in rows], Evidence(trial=TRIAL))
    project.dvc("commit", "--force", SIX)
    first = "    sampling: {temperature: 0.0"
    project.edit("params.yaml", first, f"    accept_lossy: {{k0: 2}}\n{first}")
    accepted: Job = project.job()
    assert accepted.lossy_k0 == 2
    return accepted


def compared(job: Job) -> LossyReport:
    """A comparison of the label order; the engine is in memory."""
    return compare_arms(job.model_copy(update={"order": OrderSpec(method="label")}), ArmEngine())


@pytest.mark.usefixtures("tracker")
def test_renewed_evidence_is_kept_with_its_page_and_recorded_right_after_accepting(accepted: Job, project: Any) -> None:
    comparison = compared(accepted)
    run = report(accepted, comparison, take_inputs(accepted), NOON, "a flow run")
    assert (run.notes, run.mlflow_run, run.prefect_run) == ((), f"mlflow {run.id}", "a flow run")
    assert run.dvc_revision == project.git("rev-parse", "HEAD").strip()
    folder = run_folder(accepted, "lossy", run.id)
    assert {path.name for path in folder.iterdir()} == {RECORD_FILE, PAGE_FILE}
    assert run.files["page"] == str((folder / PAGE_FILE).relative_to(accepted.root))
    assert find_report(accepted, 2) == (comparison, folder / RECORD_FILE)
    assert project.changed(SIX) == {}


@pytest.mark.usefixtures("no_tracker")
def test_a_tracker_that_is_down_is_a_note_and_the_evidence_is_recorded(project: Any) -> None:
    job = project.job()
    run = report(job, compared(job), take_inputs(job), NOON, None)
    assert ["`orderproof log six-domains`" in note for note in run.notes] == [True]
    assert find_report(job, 2) is not None
    assert project.changed(SIX) == {}


def test_a_demotion_is_recorded_right_after_accepting(accepted: Job, project: Any) -> None:
    ids = [json.loads(line)["id"] for line in accepted.prompts_path.read_text().splitlines()]
    demoted = demote(accepted, ids, "enough")
    assert not demoted.promoted
    assert recorder.record_again(accepted, demoted.headline) == []
    assert project.changed(SIX) == {}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("data/models/demo-moe/config.json", "{}", "{ }"),
        ("data/six-domains/prompts.jsonl", "prompt 3", "prompt three"),
        ("params.yaml", "looks: [5, 10]", "looks: [5, 9]"),
    ],
)
@pytest.mark.usefixtures("tracker")
def test_a_comparison_whose_inputs_changed_meanwhile_is_not_kept(project: Any, path: str, old: str, new: str) -> None:
    job = project.job()
    inputs, comparison, lock = take_inputs(job), compared(job), project.lock()
    project.edit(path, old, new)
    with pytest.raises(InputsChanged):
        report(job, comparison, inputs, NOON, None)
    assert read_runs(job, "lossy") == []
    assert project.lock() == lock
