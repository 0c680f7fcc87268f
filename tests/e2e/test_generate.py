"""`orderproof generate` as a user runs it, under real DVC and MLflow. The engine is the stand-in."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from orderproof.generate.checkpoint_folder import FOLDER, RESULTS_FILE
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import Job
from orderproof.runs.run_store import RECORD_FILE, run_folder
from tests.support.batches import make_project
from tests.support.commands import COMMAND, dvc, dvc_status, orderproof, shell, start_generating
from tests.support.version_control import put_under_version_control

pytestmark = pytest.mark.timeout(900)
PROMPTS = 1500


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job in a real repository, with an order promoted for it."""
    project = make_project(tmp_path / "p", PROMPTS, step_ms=2)
    put_under_version_control(project)
    return project


def test_a_killed_run_is_resumed_and_its_outputs_are_in_dvc_and_mlflow(job: Job, tmp_path: Path) -> None:
    first = start_generating(job, tmp_path / "log")
    children = psutil.Process(first.pid).children(recursive=True)
    engines = [child for child in children if "worker.py" in " ".join(child.cmdline())]
    assert engines
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert not psutil.wait_procs(engines, 10)[1], "a killed run left its engine behind"

    run = orderproof(job, "generate", "it")
    figures = run["figures"]
    assert figures["resumed"] > 0
    assert (figures["resumed"] + figures["generated"], figures["failed"]) == (PROMPTS, 0)
    assert (run["verb"], run["answer"], run["basis"]["order"]["method"]) == ("generate", "complete", "label")
    assert run["mlflow_run"]
    assert run["notes"] == []
    outputs = pq.read_table(job.data_dir / OUTPUTS_FILE)
    assert outputs["id"].to_pylist() == [f"p{k}" for k in range(PROMPTS)]
    assert dvc_status(job, "generate@it") == {}
    kept = {path.name for path in run_folder(job, "generate", run["id"]).iterdir()}
    assert {RECORD_FILE, "page.html", "steps.png"} <= kept

    status = orderproof(job, "status", "it")
    last = status["runs"]["generate"]
    assert (status["checkpoint"], last["id"], last["sent"], last["current"]) == (None, run["id"], True, True)


def test_ctrl_c_ends_the_run_with_one_message_and_keeps_what_was_finished(job: Job, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores it, and so would children
    try:
        first = start_generating(job, tmp_path / "log")
    finally:
        signal.signal(signal.SIGINT, before)
    children = psutil.Process(first.pid).children(recursive=True)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does
    code = first.wait()
    log = (tmp_path / "log").read_text()
    assert code == 130, log
    assert log.count("orderproof: interrupted") == 1
    assert "Traceback" not in log
    assert not psutil.wait_procs(children, 10)[1], "an interrupted run left a process behind"
    assert (job.data_dir / FOLDER / RESULTS_FILE).stat().st_size


def test_a_wrong_use_is_told_in_a_line_before_anything_starts(tmp_path: Path) -> None:
    done = shell(make_project(tmp_path / "p", 3), *COMMAND, "generate", "its", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'it'?" in done.stderr


@pytest.mark.long
def test_dvc_repro_generates_once_and_records_it_itself(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 60)
    put_under_version_control(job)
    dvc(job, "repro", "--single-item", "generate@it")
    assert pq.read_metadata(job.data_dir / OUTPUTS_FILE).num_rows == 60
    assert dvc_status(job, "generate@it") == {}
    assert "didn't change" in dvc(job, "repro", "--single-item", "generate@it")
