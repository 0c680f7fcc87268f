"""Kills in the middle of a timed pass: what is finished stays, nothing half-written stays, no process stays."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

from orderproof.measure.trial_store import Trial
from tests.e2e.conftest import Project, workers_of

pytestmark = pytest.mark.engine
WaitUntil = Callable[[Callable[[], bool], float], None]


def in_mid_pass(project: Project, trials_before: int) -> bool:
    """A new trial of `slow` has its warm-up and a first timed pass; the next one is under way."""
    trials = project.trials("slow")
    return len(trials) > trials_before and (trials[-1] / "passes.jsonl").read_text().count("\n") >= 2


def assert_whole(trial: Trial) -> None:
    """Every recorded pass has its tokens, and nothing else lies about."""
    assert len(trial.passes) >= 2
    assert all(trial.tokens(timed.pass_id).num_rows == timed.requests for timed in trial.passes)
    assert not list(trial.folder.rglob("*.part"))


def test_a_killed_engine_ends_the_measurement_with_one_message_and_keeps_its_passes(
    project: Project, wait_until: WaitUntil
) -> None:
    before = len(project.trials("slow"))
    flow = project.start("measure", "slow")
    wait_until(lambda: in_mid_pass(project, before), 400)
    (worker,) = workers_of(psutil.Process(flow.pid))
    worker.kill()
    _, err = flow.communicate(timeout=120)
    assert flow.returncode == 1
    assert "Traceback" not in err
    said = [line for line in err.split("\n") if line.startswith("orderproof: ")]
    assert len(said) == 1
    assert "was killed by SIGKILL" in said[0]
    assert not worker.is_running()
    assert_whole(Trial.read(project.trials("slow")[-1]))
    assert "did not end" in project.run("decide", "slow", code=1)


def test_a_killed_flow_leaves_no_process_behind(project: Project, wait_until: WaitUntil) -> None:
    before = len(project.trials("slow"))
    flow = project.start("measure", "slow")
    wait_until(lambda: in_mid_pass(project, before), 400)
    family = psutil.Process(flow.pid).children(recursive=True)
    assert workers_of(psutil.Process(flow.pid))
    assert any("prefect.server" in " ".join(p.cmdline()) for p in family)
    flow.kill()
    flow.communicate(timeout=120)  # ends only when nobody holds the flow's output any more
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    assert_whole(Trial.read(project.trials("slow")[-1]))
    assert not (project.root / "data" / "slow" / "order.json").exists(), "nothing was pinned"
