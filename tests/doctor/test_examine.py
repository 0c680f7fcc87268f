"""Every part is examined, every fault has advice, and no fault hides another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orderproof.doctor.examine import examine
from tests.support.doctor_project import DENSE, checks_named, make_model, only, write_params
from tests.support.lfs import POINTER


def test_every_part_is_examined_and_every_fault_says_what_to_do(root: Path) -> None:
    checks = examine(root / "params.yaml")
    names = {check.name for check in checks}
    assert {"Python", "orderproof", "params.yaml", "job it", "git", "DVC", "MLflow", "Prefect"} <= names
    assert {"CPU", "memory", "disk", "accelerator", "threads"} <= names
    assert all(check.remedy for check in checks if check.state != "ok")


def test_where_everything_is_missing_there_are_words_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = examine(tmp_path / "no" / "such" / "folder" / "params.yaml")
    told = {check.name: check.state for check in checks}
    assert (told["params.yaml"], told["git"], told["DVC"]) == ("fail", "warn", "warn")
    assert "could not be examined" not in " ".join(check.finding for check in checks)


def test_a_look_that_breaks_hides_no_other(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down() -> None:
        raise RuntimeError("no such file\n/proc/loadavg")

    monkeypatch.setattr(os, "getloadavg", break_down)
    broken = only(root, "CPU")
    assert (broken.state, "RuntimeError" in broken.finding) == ("warn", True)
    assert only(root, "disk").state == "ok"


def test_a_doctor_imports_nothing_heavy() -> None:
    script = "import sys, pathlib, orderproof.doctor.examine as d; d.examine(pathlib.Path('none')); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"mlflow", "prefect", "torch", "vllm", "sklearn", "great_expectations", "matplotlib", "dvc", "transformers"}
    assert not heavy & set(done.stdout.split())


# -- the project -------------------------------------------------------------------------------------------------------


def test_a_wrong_params_file_is_reported_with_its_own_message(root: Path) -> None:
    write_params(root, promts="x")
    check = only(root, "params.yaml")
    assert check.state == "fail"
    assert "did you mean 'prompts'" in check.finding


def test_a_complete_job_is_one_line(root: Path) -> None:
    check = only(root, "job it")
    assert (check.state, check.finding) == ("ok", "m: mixture of 64 experts, top 4, in 4 layers (toy model)")


def test_a_dense_model_is_a_warning(root: Path) -> None:
    make_model(root / "m", DENSE)
    check = only(root, "job it")
    assert check.state == "warn"
    assert "Qwen3ForCausalLM) is dense" in check.finding


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (lambda root: (root / "data/p.jsonl").unlink(), "data/p.jsonl does not exist"),
        (lambda root: (root / "data/p.jsonl").write_text(""), "data/p.jsonl is empty"),
        (lambda root: write_params(root, prompts=str(root)), "is a folder with files of .json and .jsonl"),
        (lambda root: write_params(root, tokenizer="t"), "t does not exist"),
        (lambda root: (root / "data/p.jsonl").write_bytes(POINTER), "data/p.jsonl is a Git LFS pointer"),
        (lambda root: (root / "m/model.safetensors").write_bytes(POINTER), "LFS pointers in the place of model.safet"),
        (lambda root: (root / "m/config.json").unlink(), "m does not exist"),
        (lambda root: make_model(root / "m", "{"), "config.json is not JSON"),
    ],
)
def test_what_a_job_misses_is_named(root: Path, spoil: Any, finding: str) -> None:
    spoil(root)
    check = only(root, "job it")
    assert check.state == "fail"
    assert finding in check.finding


def test_a_file_that_git_lfs_has_not_fetched_is_to_be_pulled(root: Path) -> None:
    for pointer, tokenizer in (("m/model.safetensors", None), ("t/tokenizer.json", "t")):
        (root / pointer).parent.mkdir(exist_ok=True)
        (root / pointer).write_bytes(POINTER)
        write_params(root, **({"tokenizer": tokenizer} if tokenizer else {}))
        assert "git lfs pull" in only(root, "job it").remedy
        (root / pointer).unlink()


def test_secrets_in_params_are_named_and_what_is_none_is_not(root: Path) -> None:
    def secrets() -> list[str]:
        return [check.finding for check in checks_named(root, "job it") if "secrets" in check.finding]

    write_params(root, engine={"args": {"max_num_seqs": 8}, "env": {"MY_TOKEN": "word", "OMP_NUM_THREADS": 2}})
    (finding,) = secrets()
    assert "engine.env.MY_TOKEN" in finding
    assert "OMP" not in finding
    write_params(root, engine={"server": "http://127.0.0.1:9/v1", "concurrency": 8})
    assert secrets() == []
    write_params(root, engine={"server": "http://me:word@127.0.0.1:9/v1", "concurrency": 8})
    assert len(secrets()) == 1
