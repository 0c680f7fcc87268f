"""`orderproof generate`, killed with SIGKILL at random moments: the command, its engine, or every process at once.

What the stand-in for vLLM generates is a function of the prompt, so a lost, doubled or swapped output shows.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orderproof.engines.client import QUEUED_BATCHES
from orderproof.engines.replicas import AHEAD_BATCHES
from orderproof.generate.checkpoint_folder import FOLDER
from orderproof.generate.windowed_ordering import STREAMED_FILE
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import Job
from tests.standin.vllm.v1.engine.llm_engine import generated
from tests.support.batches import (
    LABELS,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    MAX_TOKENS,
    generated_places,
    make_project,
    promote_label_order,
)
from tests.support.kills import GenerateCommand, kept_places, kill_many

LONG = [pytest.mark.long, pytest.mark.timeout(3600)]


def make_job(root: Path, prompts: int, *, window: int | None = None, replicas: int = 1) -> Job:
    """A job with a promoted order, whose engine takes 2 ms for a step."""
    job = make_project(root, prompts, step_ms=2, replicas=replicas)
    promote_label_order(job, window)
    return job


def check_exactly_once(job: Job, prompts: int, kills: int, in_flight: int) -> None:
    """Each prompt has its own output, and the engines did not generate more again than was in flight at a kill."""
    outputs = pq.read_table(job.data_dir / OUTPUTS_FILE)
    assert outputs["id"].to_pylist() == [f"p{k}" for k in range(prompts)]
    expected = [generated(list(f"prompt {k}".encode()), MAX_TOKENS, MAX_MODEL_LEN) for k in range(prompts)]
    assert outputs["token_ids"].to_pylist() == expected, "an output belongs to another prompt, or is not whole"
    assert not (job.data_dir / FOLDER).exists()
    places = generated_places(job)
    assert set(places.tolist()) == set(range(prompts))
    assert len(places) - prompts <= kills * in_flight, "more work was lost than was in flight"


@pytest.mark.parametrize(("kills", "prompts"), [(4, 2500), pytest.param(100, 40_000, marks=LONG)])
def test_whatever_is_killed_no_output_is_lost_doubled_or_swapped(tmp_path: Path, kills: int, prompts: int) -> None:
    job, log = make_job(tmp_path / "project", prompts), tmp_path / "command.log"
    kill_many(job, kills, log)
    before, kept = len(generated_places(job)), set(kept_places(job))
    GenerateCommand(job, log).finish()
    check_exactly_once(job, prompts, kills, QUEUED_BATCHES * MAX_NUM_SEQS)
    last_run = generated_places(job)[before:]
    assert len(last_run) == prompts - len(kept), "a prompt that had an output was sent again"
    labels = last_run * 3 % LABELS
    changes = int((labels[1:] != labels[:-1]).sum())
    assert changes < 2 * MAX_NUM_SEQS * LABELS, "neighbours have other labels too often for an order by label"


@pytest.mark.parametrize(("kills", "prompts"), [(2, 2500), pytest.param(50, 40_000, marks=LONG)])
def test_with_replicas_too_no_output_is_lost_doubled_or_swapped(tmp_path: Path, kills: int, prompts: int) -> None:
    job, log = make_job(tmp_path / "project", prompts, replicas=2), tmp_path / "command.log"
    kill_many(job, kills, log)
    GenerateCommand(job, log).finish()
    check_exactly_once(job, prompts, kills, 2 * AHEAD_BATCHES * MAX_NUM_SEQS)


@pytest.mark.parametrize(("kills", "prompts"), [(2, 1500), pytest.param(50, 20_000, marks=LONG)])
def test_outputs_of_a_stream_are_not_lost_doubled_or_swapped_either(tmp_path: Path, kills: int, prompts: int) -> None:
    job, log = make_job(tmp_path / "project", prompts, window=64), tmp_path / "command.log"
    piped = job.prompts_path.rename(tmp_path / "piped.jsonl")
    kill_many(job, kills, log, piped)
    GenerateCommand(job, log, piped).finish()
    check_exactly_once(job, prompts, kills, QUEUED_BATCHES * MAX_NUM_SEQS)
    assert (job.data_dir / STREAMED_FILE).read_bytes() == piped.read_bytes()


def test_a_run_killed_while_it_writes_the_outputs_leaves_whole_ones_or_none(tmp_path: Path) -> None:
    job, log = make_job(tmp_path / "project", 400), tmp_path / "command.log"
    moments = random.Random(7)
    for _ in range(2):
        run = GenerateCommand(job, log)
        while run.process.poll() is None and not list(job.data_dir.glob(f".{OUTPUTS_FILE}.*.part")):
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.3))
        run.kill("command")
    if not (job.data_dir / OUTPUTS_FILE).exists():
        GenerateCommand(job, log).finish()
    outputs = pq.read_table(job.data_dir / OUTPUTS_FILE)
    assert outputs["id"].to_pylist() == [f"p{k}" for k in range(400)]
