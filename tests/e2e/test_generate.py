"""`orderproof generate` as a user runs it, under real Prefect, DVC and MLflow. The engine is the stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from orderproof.generate.checkpoint_folder import FOLDER, RESULTS_FILE
from orderproof.generate.delivery import OUTPUTS_FILE
from orderproof.job.spec import Job
from tests.conftest import ROOT
from tests.support.batches import make_project, promote_label_order
from tests.support.tiny_tokenizer import save_model

pytestmark = pytest.mark.timeout(900)
PROMPTS = 1500
COMMAND = [sys.executable, "-m", "orderproof.cli"]


def shell(job: Job, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, cwd=job.root, env=surroundings(job), capture_output=True, text=True)
    assert done.returncode == 0 or not check, f"{argv} failed:\n{done.stdout}{done.stderr}"
    return done


def surroundings(job: Job, **more: str) -> dict[str, str]:
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "PREFECT_API", "DVC_STAGE"))
    }
    return {**kept, "PREFECT_HOME": str(job.root / ".orderproof" / "prefect"), "DVC_NO_ANALYTICS": "1", **more}


def dvc(job: Job, *arguments: str) -> str:
    return shell(job, sys.executable, "-m", "dvc", *arguments).stdout


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job in a real repository, with an order promoted for it."""
    made = make_project(tmp_path / "p", PROMPTS, step_ms=2)
    save_model(made.model_path)
    promote_label_order(made)
    made.reports_dir.mkdir(parents=True)
    (made.root / ".orderproof" / "prefect").mkdir(parents=True)
    stages = (ROOT / "dvc.yaml").read_text().split("\nmetrics:")[0]
    (made.root / "dvc.yaml").write_text(stages + "\n")
    for argv in (["git", "init", "-q"], ["git", "config", "user.email", "a@b"], ["git", "config", "user.name", "a"]):
        shell(made, *argv)
    dvc(made, "init", "-q")
    return made


def start(job: Job, **more: str) -> subprocess.Popen[bytes]:
    """Begin a run, and wait until it keeps results."""
    results = job.data_dir / FOLDER / RESULTS_FILE
    with open(job.root / "first.log", "ab") as log:
        run = subprocess.Popen(
            [*COMMAND, "generate", "it"], cwd=job.root, env=surroundings(job, **more), stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    while not (results.exists() and results.stat().st_size):
        assert run.poll() is None, (job.root / "first.log").read_text()
        time.sleep(0.01)
    return run


def test_a_killed_run_goes_on_and_its_outputs_are_in_dvc_and_mlflow(job: Job) -> None:
    first = start(job)
    children = psutil.Process(first.pid).children(recursive=True)
    engines = [child for child in children if "worker.py" in " ".join(child.cmdline())]
    assert engines
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert not psutil.wait_procs(engines, 10)[1], "a killed flow left its engine behind"

    told: dict[str, Any] = json.loads(shell(job, *COMMAND, "generate", "it", "--json").stdout)
    assert told["resumed"] > 0
    assert (told["resumed"] + told["generated"], told["failed"], told["order"]["method"]) == (PROMPTS, 0, "label")
    assert told["mlflow_run"]
    assert not [note for note in told["notes"] if "DVC" in note], told["notes"]
    outputs = pq.read_table(job.data_dir / OUTPUTS_FILE)
    assert outputs["id"].to_pylist() == [f"p{k}" for k in range(PROMPTS)]
    assert json.loads(dvc(job, "status", "--json", "generate@it")) == {}

    status = json.loads(shell(job, *COMMAND, "status", "it", "--json").stdout)
    assert (status["checkpoint"], status["last_run"]["run"], status["last_run"]["sent"]) == (None, told["run"], True)


def test_ctrl_c_reaches_the_run_and_not_its_server_which_hears_how_the_run_ended(job: Job) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores it, and so would children
    try:
        first = start(job)
    finally:
        signal.signal(signal.SIGINT, before)
    children = psutil.Process(first.pid).children(recursive=True)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does
    code = first.wait()
    said = (job.root / "first.log").read_text()
    assert code == 130, said
    assert said.count("orderproof: interrupted") == 1
    assert "Traceback" not in said
    assert "Flow run 'generate it' - Finished in state Crashed" in said
    assert not psutil.wait_procs(children, 10)[1], "an interrupted run left a process behind"
    assert (job.data_dir / FOLDER / RESULTS_FILE).stat().st_size


def test_a_wrong_use_is_told_in_a_line_before_anything_starts(job: Job) -> None:
    done = shell(job, *COMMAND, "generate", "its", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'it'?" in done.stderr
