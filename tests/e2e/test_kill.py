"""SIGKILL at random moments: of an engine, of the process that drives it, and of all at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from orderproof.engines.client import QUEUED_BATCHES
from orderproof.engines.replicas import AHEAD_BATCHES
from orderproof.generate.checkpoint_folder import FOLDER, RESULTS_FILE
from orderproof.generate.delivery import OUTPUTS_FILE
from orderproof.generate.windowed_ordering import STREAMED_FILE
from orderproof.job.spec import Job
from tests.standin.vllm.v1.engine.llm_engine import generated
from tests.support.batches import (
    DRIVER,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    MAX_TOKENS,
    generated_places,
    make_project,
    promote_label_order,
)

LONGEST_RUN_S = 300
VICTIMS = ("engine", "driver", "both")


class Run:
    """One driver process in a group of its own, until it ends or is killed."""

    def __init__(self, job: Job, log: Path, piped: Path | None = None) -> None:
        """`piped`: prompts that come through a pipe instead of from the job's file."""
        self.results = job.data_dir / FOLDER / RESULTS_FILE
        self.before = self._size()
        with open(log, "ab") as sink:
            writer = subprocess.Popen(["cat", piped], stdout=subprocess.PIPE) if piped else None
            self.driver = subprocess.Popen(
                [sys.executable, DRIVER, job.root, *(["-"] if writer else [])],
                stdin=writer.stdout if writer else None,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
            if writer and writer.stdout:
                writer.stdout.close()  # the driver's end alone holds the pipe

    def wait_for_results(self) -> bool:
        """Until this run has kept a result; False if it ended before."""
        while self.driver.poll() is None:
            if self._size() > self.before:
                return True
            time.sleep(0.002)
        return False

    def kill(self, victim: str) -> None:
        children = self._children()
        if victim == "engine":
            for child in random.sample(children, min(1, len(children))):  # one of several replicas
                os.killpg(child.pid, signal.SIGKILL)
        else:
            self.driver.kill()
            if victim == "both":
                for child in children:
                    os.kill(child.pid, signal.SIGKILL)
        self.driver.wait(LONGEST_RUN_S)
        _, alive = psutil.wait_procs(children, 10)
        assert not alive, f"{victim} was killed and left {alive} behind"

    def _children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.driver.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _size(self) -> int:
        return self.results.stat().st_size if self.results.exists() else 0


def kept_places(job: Job) -> list[int]:
    """Places with a whole line in the checkpoint."""
    path = job.data_dir / FOLDER / RESULTS_FILE
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [int(line.split(b" ")[2]) for line in lines]


def kill_many(job: Job, kills: int, seed: int, log: Path, piped: Path | None = None) -> Counter:
    """Kill so many runs at random moments of their work; returns the victims."""
    moments, victims = random.Random(seed), Counter[str]()
    kept: set[int] = set()
    while sum(victims.values()) < kills:
        run, victim = Run(job, log, piped), moments.choice(VICTIMS)
        assert run.wait_for_results(), f"a run ended before it was killed; its log is {log}"
        time.sleep(moments.uniform(0, 0.25))
        run.kill(victim)
        victims[victim] += 1
        now = kept_places(job)
        assert len(set(now)) == len(now), "a result stands twice"
        assert kept <= set(now), "a result that was kept is gone"
        assert not (job.data_dir / OUTPUTS_FILE).exists(), "outputs before all results are there"
        kept = set(now)
    return victims


def finish(job: Job, log: Path) -> None:
    with open(log, "ab") as sink:
        subprocess.run([sys.executable, DRIVER, job.root], check=True, stdout=sink, stderr=sink, timeout=LONGEST_RUN_S)


def prove_exactly_once(job: Job, prompts: int, kills: int, in_flight: int) -> None:
    outputs = pq.read_table(job.data_dir / OUTPUTS_FILE)
    assert outputs["id"].to_pylist() == [f"p{k}" for k in range(prompts)]
    wanted = [generated(list(f"prompt {k}".encode()), MAX_TOKENS, MAX_MODEL_LEN) for k in range(prompts)]
    assert outputs["token_ids"].to_pylist() == wanted, "an output belongs to another prompt, or is not whole"
    assert not (job.data_dir / FOLDER).exists()
    made = generated_places(job)
    assert set(made.tolist()) == set(range(prompts))
    assert len(made) - prompts <= kills * in_flight, "more work was lost than was in flight"


@pytest.mark.parametrize(
    ("kills", "prompts"), [(10, 3000), pytest.param(100, 30_000, marks=[pytest.mark.long, pytest.mark.timeout(3000)])]
)
def test_whatever_is_killed_no_prompt_is_lost_doubled_or_swapped(tmp_path: Path, kills: int, prompts: int) -> None:
    job = make_project(tmp_path / "project", prompts, step_ms=2)
    promote_label_order(job)
    victims = kill_many(job, kills, seed=kills, log=tmp_path / "driver.log")
    assert all(victims[victim] for victim in VICTIMS)
    finish(job, tmp_path / "driver.log")
    prove_exactly_once(job, prompts, kills, QUEUED_BATCHES * MAX_NUM_SEQS)


@pytest.mark.parametrize(
    ("kills", "prompts"), [(3, 2000), pytest.param(50, 30_000, marks=[pytest.mark.long, pytest.mark.timeout(3000)])]
)
def test_with_replicas_too_no_prompt_is_lost_doubled_or_swapped(tmp_path: Path, kills: int, prompts: int) -> None:
    job = make_project(tmp_path / "project", prompts, step_ms=2, replicas=2)
    promote_label_order(job)
    victims = kill_many(job, kills, seed=8, log=tmp_path / "driver.log")
    assert all(victims[victim] for victim in VICTIMS)
    finish(job, tmp_path / "driver.log")
    prove_exactly_once(job, prompts, kills, 2 * AHEAD_BATCHES * MAX_NUM_SEQS)


@pytest.mark.parametrize(
    ("kills", "prompts"), [(3, 1000), pytest.param(60, 20_000, marks=[pytest.mark.long, pytest.mark.timeout(3000)])]
)
def test_prompts_from_a_pipe_are_not_lost_doubled_or_swapped_either(tmp_path: Path, kills: int, prompts: int) -> None:
    job, log = make_project(tmp_path / "project", prompts, step_ms=2), tmp_path / "driver.log"
    promote_label_order(job, window=64)
    piped = job.prompts_path.rename(tmp_path / "piped.jsonl")
    kill_many(job, kills, seed=kills, log=log, piped=piped)
    assert Run(job, log, piped).driver.wait(LONGEST_RUN_S) == 0, log.read_text()
    prove_exactly_once(job, prompts, kills, QUEUED_BATCHES * MAX_NUM_SEQS)
    assert (job.data_dir / STREAMED_FILE).read_bytes() == piped.read_bytes()


def test_a_run_killed_while_it_writes_the_outputs_leaves_none_or_whole_ones(tmp_path: Path) -> None:
    job, log = make_project(tmp_path / "project", 400), tmp_path / "driver.log"
    moments = random.Random(7)
    for _ in range(3):
        run = Run(job, log)
        while run.driver.poll() is None and not list(job.data_dir.glob(f".{OUTPUTS_FILE}.*.part")):
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.3))
        run.kill("driver")
    if not (job.data_dir / OUTPUTS_FILE).exists():
        finish(job, log)
    outputs = pq.read_table(job.data_dir / OUTPUTS_FILE)
    assert outputs["id"].to_pylist() == [f"p{k}" for k in range(400)]


def test_going_on_after_a_kill_keeps_the_promoted_order(tmp_path: Path) -> None:
    job, log = make_project(tmp_path / "project", 2000, step_ms=2), tmp_path / "driver.log"
    promote_label_order(job)
    kill_many(job, 2, seed=3, log=log)
    before, kept = len(generated_places(job)), set(kept_places(job))
    finish(job, log)
    label = generated_places(job)[before:] * 3 % 7
    changes = int((label[1:] != label[:-1]).sum())
    assert len(label) == 2000 - len(kept)
    assert changes < 2 * MAX_NUM_SEQS * 7, "neighbours have other labels too often for an order by label"
