"""A lossy comparison and a demotion reach DVC, also once the lossy routing is accepted. DVC and git are real."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job, OrderSpec
from orderproof.lossy.comparison import compare_lossy
from orderproof.lossy.report import LossyReport, evidence_path
from orderproof.orders.registry import make_order
from orderproof.runs import promotion, recording
from orderproof.runs.dvc import InputsChanged
from tests.lossy.test_comparison import ToldEngine
from tests.support.fake_engine import MOE, mixed, prompts_of

SIX = "measure@six-domains"


def compared(job: Job) -> LossyReport:
    engine: Any = ToldEngine()
    prompts = prompts_of(mixed(48))
    return compare_lossy(job, MOE, prompts, make_order(OrderSpec(method="label"), prompts, "md5"), engine, 2, 5)


@pytest.fixture
def accepted(project: Any) -> Job:
    """Measured, promoted and recorded; and then a person accepted."""
    job: Job = project.job()
    rows = [json.loads(line) for line in job.prompts_path.read_text().splitlines()]
    ids, md5 = [row["id"] for row in rows], md5_of(job.prompts_path)
    order = make_order(job.order.model_copy(update={"method": "shuffled"}), rows, md5)
    promotion._write(job, order, ids, promoted=True, trial="1", mlflow_run=None)
    project.dvc("commit", "--force", SIX)
    first = "    sampling: {temperature: 0.0"
    project.edit("params.yaml", first, f"    accept_lossy: {{k0: 2}}\n{first}")
    job = project.job()
    assert job.lossy_k0 == 2
    return job


def test_renewed_evidence_is_recorded_right_after_accepting(accepted: Job, project: Any) -> None:
    _, notes = recording.keep_lossy(accepted, compared(accepted), recording.inputs_of(accepted))
    assert notes == []
    assert project.changed(SIX) == {}


def test_a_demotion_is_recorded_right_after_accepting(accepted: Job, project: Any) -> None:
    ids = [json.loads(line)["id"] for line in accepted.prompts_path.read_text().splitlines()]
    back, notes = recording.demote(accepted, ids, "enough")
    assert not back.promoted
    assert [note[:5] for note in notes] == ["LOSSY"]
    assert project.changed(SIX) == {}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("data/models/demo-moe/config.json", "{}", "{ }"),
        ("data/six-domains/prompts.jsonl", "prompt 3", "prompt three"),
        ("params.yaml", "looks: [5, 10]", "looks: [5, 9]"),
    ],
)
def test_a_comparison_whose_inputs_changed_meanwhile_is_not_kept(project: Any, path: str, old: str, new: str) -> None:
    job = project.job()
    inputs, report, lock = recording.inputs_of(job), compared(job), project.lock()
    project.edit(path, old, new)
    with pytest.raises(InputsChanged):
        recording.keep_lossy(job, report, inputs)
    assert not evidence_path(job, 2).exists()
    assert project.lock() == lock
