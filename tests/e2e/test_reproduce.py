"""A baseline that is pushed, pulled into a second clone and reproduced there: real git, DVC, Prefect and MLflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from orderproof.generate import recording as batch_recording
from orderproof.generate.delivery import OUTPUTS_FILE
from orderproof.job.hashing import md5_of
from orderproof.job.params import load_job
from orderproof.job.spec import EngineSpec, Job
from orderproof.reproduce import recording as baseline_recording
from orderproof.reproduce.record import NEWEST_FILE, reports_of
from orderproof.runs.recording import inputs_of
from tests.conftest import GREEDY, ROOT
from tests.e2e.test_generate import COMMAND, dvc, shell
from tests.support.batches import make_project, make_real_project, promote_label_order, recorded_batch, reproduce
from tests.support.tiny_tokenizer import save_model

pytestmark = pytest.mark.timeout(900)
PROMPTS = 60


def put_under_version_control(job: Job) -> None:
    """A repository whose remote for data is the folder beside it, with an order that was promoted."""
    promote_label_order(job)
    job.reports_dir.mkdir(parents=True)
    stages = YAML(typ="safe", pure=True).load(ROOT / "dvc.yaml")["stages"]
    mine = {name: stages[name] for name in ("measure", "generate", "baseline")}  # without the makers of the demo's data
    (job.root / "dvc.yaml").write_text(json.dumps({"stages": mine}))
    (job.root / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    shell(job, "git", "init", "-q")
    dvc(job, "init", "-q")
    dvc(job, "remote", "add", "--default", "folder", str(job.root.parent / "remote"))
    dvc(job, "add", "-q", "data/it/prompts.jsonl", *([job.model] if job.model_path.is_relative_to(job.root) else []))
    dvc(job, "commit", "-q", "--force", f"measure@{job.name}")


def push(job: Job) -> None:
    shell(job, "git", "add", "--all")
    who = ("-c", "user.email=a@b", "-c", "user.name=a")
    shell(job, "git", *who, "commit", "-q", "-m", "a baseline")
    dvc(job, "push", "-q", "-a")


def clone(job: Job) -> Job:
    """The same project on another machine, as far as a folder can be one."""
    root = job.root.parent / "clone"
    shell(job, "git", "clone", "-q", str(job.root), str(root))
    there = load_job(root / "params.yaml", job.name)
    assert not (there.data_dir / OUTPUTS_FILE).exists()
    dvc(there, "pull", "-q", "--with-deps", f"generate@{job.name}")  # without a target DVC misses stages that never ran
    return there


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.delenv("DVC_STAGE", raising=False)
    made = make_project(tmp_path / "p", PROMPTS)
    save_model(made.model_path)
    put_under_version_control(made)
    return made


def test_a_second_clone_pulls_a_baseline_and_reproduces_it(job: Job) -> None:
    inputs = inputs_of(job)
    run = batch_recording.record(job, recorded_batch(job)[2], inputs)
    assert not run.notes
    push(job)
    there = clone(job)
    assert md5_of(there.data_dir / OUTPUTS_FILE) == run.outputs_md5
    inputs, made = inputs_of(there), reproduce(there)
    assert (made.answer, made.changes) == ("reproduced", ())
    assert (made.outputs.identical, made.order.method) == (PROMPTS, "label")
    baseline_recording.keep_newest(there, made)
    assert not baseline_recording.record(there, made, inputs).notes
    assert json.loads(dvc(there, "status", "--json", "baseline@it")) == {}
    shown = json.loads(dvc(there, "metrics", "show", "--json"))
    assert shown[""]["data"][f"reports/baseline/it/{NEWEST_FILE}"]["data"]["outputs"]["identical"] == PROMPTS


@pytest.mark.long
def test_dvc_reproduces_only_what_changed_and_says_what(job: Job) -> None:
    shell(job, *COMMAND, "generate", "it")
    outputs = md5_of(job.data_dir / OUTPUTS_FILE)
    push(job)
    there = clone(job)
    told: dict[str, Any] = json.loads(shell(there, *COMMAND, "reproduce", "it", "--json", "--exit-code").stdout)
    assert (told["answer"], told["identical_share"], told["changes"]) == ("reproduced", 1.0, [])
    assert told["bit_exact"] == f"bit-exact: seen in {PROMPTS} of {PROMPTS} outputs"
    assert told["mlflow_run"]
    assert not told["notes"]
    assert "'baseline@it' didn't change, skipping" in dvc(there, "repro", "baseline@it")
    newest = (reports_of(there) / NEWEST_FILE).read_bytes()

    params = json.loads((there.root / "params.yaml").read_text())
    params["jobs"]["it"]["sampling"]["max_tokens"] = 6
    (there.root / "params.yaml").write_text(json.dumps(params))
    status = json.loads(dvc(there, "status", "--json", "baseline@it"))
    assert status["baseline@it"] == [{"changed deps": {"params.yaml": {"jobs.it": "modified"}}}]
    dvc(there, "repro", "--single-item", "baseline@it")
    made = json.loads((reports_of(there) / NEWEST_FILE).read_bytes())
    assert made["changes"] == ["sampling.max_tokens: 8 → 6"]
    assert (made["answer"], made["outputs"]["diverged"]) == ("outputs differ", PROMPTS)
    assert made["baseline_md5"] == outputs == md5_of(there.data_dir / OUTPUTS_FILE)
    assert json.loads(dvc(there, "status", "--json", "baseline@it")) == {}
    failed = shell(there, *COMMAND, "reproduce", "it", "--exit-code", check=False)
    assert failed.returncode == 20
    assert "changed since the baseline: sampling.max_tokens: 8 → 6" in failed.stdout

    params["jobs"]["it"]["sampling"]["max_tokens"] = 8
    (there.root / "params.yaml").write_text(json.dumps(params))
    dvc(there, "repro", "--single-item", "baseline@it")
    assert (reports_of(there) / NEWEST_FILE).read_bytes() != newest, "an older comparison came from DVC's run cache"
    status_told = json.loads(shell(there, *COMMAND, "status", "it", "--json").stdout)["reproduction"]
    assert (status_told["answer"], status_told["current"]) == ("reproduced", True)


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
    there = clone(job)
    told = json.loads(shell(there, *COMMAND, "reproduce", "it", "--json", "--exit-code").stdout)
    assert (told["answer"], told["outputs"]["identical"], told["changes"]) == ("reproduced", 32, [])
