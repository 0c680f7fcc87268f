"""A baseline that is pushed, pulled into a second clone and reproduced there: real git, DVC and MLflow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orderproof.generate import steps as generate_steps
from orderproof.job.hashing import md5_of
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import EngineSpec, Job
from orderproof.reproduce import steps
from orderproof.reproduce.record import NEWEST_FILE, read_newest
from orderproof.runs.run_store import read_runs
from tests.conftest import GREEDY
from tests.support.batches import (
    GENERATE,
    REPRODUCE,
    count,
    edit_job,
    generate,
    make_project,
    make_real_project,
    reproduce,
)
from tests.support.commands import COMMAND, dvc, dvc_status, orderproof, shell
from tests.support.version_control import clone, push, put_under_version_control

pytestmark = pytest.mark.timeout(900)
PROMPTS = 60


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    for name in ("DVC_STAGE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    project = make_project(tmp_path / "p", PROMPTS)
    put_under_version_control(project)
    return project


def test_a_second_clone_pulls_a_baseline_and_reproduces_it(job: Job) -> None:
    run = generate(job, run_with=replace(GENERATE, record=generate_steps.record))
    assert not run.notes
    push(job)
    there = clone(job)
    assert md5_of(there.data_dir / OUTPUTS_FILE) == run.details["outputs_md5"]
    again = reproduce(there, run_with=replace(REPRODUCE, record=steps.record))
    assert (again.answer, again.details["changes"], again.notes) == ("reproduced", [], ())
    assert again.basis.order is not None
    assert (count(again, "identical"), again.basis.order.method) == ((PROMPTS,), "label")
    assert dvc_status(there, "reproduce@it") == {}
    shown = shown_metrics(there, f"data/it/{NEWEST_FILE}")
    assert shown["outputs"]["identical"] == PROMPTS


def shown_metrics(job: Job, path: str) -> Any:
    """What `dvc metrics show` has of a file."""
    return json.loads(dvc(job, "metrics", "show", "--json"))[""]["data"][path]["data"]


@pytest.mark.long
def test_dvc_reproduces_only_what_changed_and_says_what(job: Job) -> None:
    shell(job, *COMMAND, "generate", "it")
    outputs = md5_of(job.data_dir / OUTPUTS_FILE)
    push(job)
    there = clone(job)
    run = orderproof(there, "reproduce", "it", "--exit-code")
    assert (run["answer"], run["figures"]["identical_share"], run["details"]["changes"]) == ("reproduced", 1.0, [])
    assert f"{PROMPTS} of {PROMPTS} outputs" in run["details"]["bit_exact"]
    assert run["mlflow_run"]
    assert not run["notes"]
    assert "'reproduce@it' didn't change, skipping" in dvc(there, "repro", "reproduce@it")

    shorter = edit_job(there, sampling={"max_tokens": 6})
    assert dvc_status(there, "reproduce@it")["reproduce@it"] == [
        {"changed deps": {"params.yaml": {"jobs.it": "modified"}}}
    ]
    dvc(there, "repro", "--single-item", "reproduce@it")
    compared = read_newest(shorter)
    assert compared is not None
    assert compared.changes == ("sampling.max_tokens: 8 → 6",)
    assert (compared.answer, compared.outputs.diverged) == ("outputs differ", PROMPTS)
    assert compared.baseline_md5 == outputs == md5_of(there.data_dir / OUTPUTS_FILE)
    assert dvc_status(there, "reproduce@it") == {}
    differs = shell(there, *COMMAND, "reproduce", "it", "--exit-code", check=False)
    assert differs.returncode == 20
    assert "sampling.max_tokens: 8 → 6" in differs.stdout

    edit_job(there, sampling={"max_tokens": 8})
    runs = len(read_runs(there, "reproduce"))
    dvc(there, "repro", "--single-item", "reproduce@it")
    assert len(read_runs(there, "reproduce")) == runs + 1, "an older comparison came from DVC's run cache"
    last = orderproof(there, "status", "it")["runs"]["reproduce"]
    assert (last["answer"], last["current"]) == ("reproduced", True)


@pytest.mark.long
@pytest.mark.engine
def test_a_second_clone_reproduces_what_a_real_vllm_gave(
    tmp_path: Path, models: dict[str, Path], engine_spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DVC_STAGE", raising=False)
    texts = [f"What is {k} plus {k * 7 % 13}?" for k in range(32)]
    job = make_real_project(tmp_path / "p", models["moe"], engine_spec, GREEDY, texts)
    put_under_version_control(job)
    shell(job, *COMMAND, "generate", "it")
    push(job)
    run = orderproof(clone(job), "reproduce", "it", "--exit-code")
    assert (run["answer"], run["figures"]["identical"], run["details"]["changes"]) == ("reproduced", 32, [])
