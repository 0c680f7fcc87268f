"""Kills in the middle of a timed pass: what is finished stays, nothing half-written stays, no process stays."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import psutil
import pytest

from orderproof.measure.trial_store import Trial
from tests.e2e.conftest import Project, workers_of

pytestmark = pytest.mark.engine
WaitUntil = Callable[[Callable[[], bool], float], None]


def in_mid_pass(project: Project, trials_before: int) -> bool:
    """A new trial of `slow` has its first slices; the next one is under way."""
    trials = project.trials("slow")
    return len(trials) > trials_before and (trials[-1] / "slices.jsonl").read_text().count("\n") >= 2


def assert_whole(trial: Trial) -> None:
    """Every complete block has its tokens, and nothing else lies about."""
    assert len(trial.slices) >= 2
    assert all(trial.tokens(timed.pass_id).num_rows == timed.requests for timed in trial.passes)
    assert not list(trial.folder.rglob("*.part"))


def test_a_killed_engine_ends_the_measurement_with_one_message_and_keeps_its_passes(
    project: Project, wait_until: WaitUntil
) -> None:
    before = len(project.trials("slow"))
    run = project.start("measure", "slow")
    wait_until(lambda: in_mid_pass(project, before), 400)
    (worker,) = workers_of(psutil.Process(run.pid))
    worker.kill()
    _, err = run.communicate(timeout=120)
    assert run.returncode == 1
    assert "Traceback" not in err
    (message,) = [line for line in err.split("\n") if line.startswith("orderproof: ")]
    assert "was killed by SIGKILL" in message
    assert not worker.is_running()
    assert_whole(Trial.read(project.trials("slow")[-1]))
    assert "stopped" in project.run("decide", "slow", code=1)


def test_a_killed_measurement_leaves_no_process_behind(project: Project, wait_until: WaitUntil) -> None:
    shutil.rmtree(project.root / "reports" / "slow", ignore_errors=True)  # a stopped trial would be taken up again
    before = len(project.trials("slow"))
    run = project.start("measure", "slow")
    wait_until(lambda: in_mid_pass(project, before), 400)
    family = psutil.Process(run.pid).children(recursive=True)
    assert workers_of(psutil.Process(run.pid))
    run.kill()
    run.communicate(timeout=120)  # ends only when nobody holds the command's output any more
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    assert_whole(Trial.read(project.trials("slow")[-1]))
    assert not (project.root / "data" / "slow" / "order.json").exists(), "nothing was pinned"
