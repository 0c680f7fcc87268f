"""A job about to be measured: its files, a plan, and trials as a measurement leaves them. Nothing is timed."""

from __future__ import annotations

import json
from dataclasses import dataclass
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
from orderproof.measure.plan import Plan
from orderproof.measure.steps import Outcome
from orderproof.measure.trial_store import Trial
from orderproof.measure.verdict import Rule, Verdict
from orderproof.orders.order import Order
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.runs.dvc import DvcError
from orderproof.runs.inputs import Inputs, take_inputs
from tests.support.trial_maker import LABELS, make_trial, trial_folder

PROMPTS = 48
FIRST, SECOND = "20261129T144640Z-3f9a", "20261130T144640Z-77aa"
PARAMS = {
    "defaults": {"engine": {"args": {"max_num_seqs": 8}}},
    "jobs": {"six-domains": {"prompts": "prompts.jsonl", "model": "model", "order": {"method": "label"}}},
}


@dataclass(frozen=True)
class MeasuredJob:
    """A job, its plan and the hashes that were taken before it is measured."""

    plan: Plan
    inputs: Inputs

    @property
    def job(self) -> Job:
        return self.plan.job

    def trial(self, name: str = FIRST, **fields: Any) -> Trial:
        """A trial as `measure` leaves it when it is stopped as soon as a look gives the verdict."""
        order = self.plan.chosen
        registered = {"candidate": order.record(), "dataset_md5": order.dataset_md5, "settings": self.plan.settings}
        return make_trial(trial_folder(self.job, name), prompts=PROMPTS, **{**registered, **fields})

    def order_files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.job.data_dir.glob("order.*")}


def make_measured_job(root: Path) -> MeasuredJob:
    """Write params.yaml, prompts and a model, and plan their first trial: sorted by label."""
    YAML(typ="safe", pure=True).dump(PARAMS, root / "params.yaml")
    ids = [f"p{i:05d}" for i in range(PROMPTS)]
    labels = [LABELS[i % len(LABELS)] for i in range(PROMPTS)]
    rows = [{"id": name, "text": "x", "label": label} for name, label in zip(ids, labels, strict=True)]
    (root / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text("{}")
    job = load_job(root / "params.yaml", "six-domains")
    grouped = np.argsort(np.arange(PROMPTS) % len(LABELS), kind="stable")
    plan = plan_of(job, Order(grouped, "label", {}, {}, md5_of(job.prompts_path)), ids)
    return MeasuredJob(plan, take_inputs(job))


def plan_of(job: Job, order: Order, ids: list[str]) -> Plan:
    """The plan of a trial of this order over these prompts."""
    return Plan(
        job=job,
        model=read_model(job.model_path, job.model),
        prompts=_tokenized(ids),
        dataset_md5=order.dataset_md5,
        chosen=order,
        orders={},
        control_why="",
        rule=Rule(),
        question="the question",
        attempt=1,
        coin_seed=0,
        kind="clean",
        resumable=None,
        noise=None,
        detectable_excess_before=None,
        aa=False,
        predicted=None,
        refusal=None,
    )


def verdict_of(trial: Trial) -> Verdict:
    """The verdict that a trial has come to."""
    verdict = judge(trial)
    assert verdict is not None
    return verdict


def outcome_of(trial: Trial) -> Outcome:
    """What the steps after the last block are given."""
    return Outcome(trial, verdict_of(trial))


def without_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow takes every run as `run-1`, DVC says at once that there is no repository, and nothing is drawn."""

    def run_dvc(root: Path, *_: str) -> str:
        raise DvcError(f"you are not inside of a DVC repository ({root})")

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setattr("orderproof.runs.recorder.send_run", lambda *_: "run-1")
    monkeypatch.setattr("orderproof.runs.dvc.run_dvc", run_dvc)
    monkeypatch.setattr("orderproof.measure.pictures.draw", lambda *_: None)


def edit_params(job: Job) -> None:
    """Change a setting that decides what is measured."""
    params = job.root / "params.yaml"
    params.write_text(params.read_text().replace("max_num_seqs: 8", "max_num_seqs: 9"))


def edit_prompts(job: Job) -> None:
    """Add a prompt."""
    with open(job.prompts_path, "a") as prompts:
        prompts.write('{"id": "late", "text": "x"}\n')


def edit_model(job: Job) -> None:
    """Change the model."""
    (job.model_path / "config.json").write_text('{"hidden_size": 1}')


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
