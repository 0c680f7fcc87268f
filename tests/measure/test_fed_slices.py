"""Slices of a queue that never runs empty, on an engine whose gain is known from a law of step times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from orderproof.engines.protocol import Output, Request
from orderproof.measure.estimator import estimate
from orderproof.measure.evaluate import evidence_of, judge
from orderproof.measure.trial_store import Trial
from orderproof.outputs.passes import CANDIDATE, CONTROL
from tests.support.planned_trials import TOKENS, queued_job, run_blocks
from tests.support.queue_engine import QueueEngine

SEATS = 16
BATCHES = 96  # of prompts in a trial
COPIES = 5  # of them in a job


def natural_lengths(sigma: float, size: int, seed: int = 0) -> NDArray[np.int64]:
    drawn = 48 * np.exp(np.random.default_rng(seed).normal(0, sigma, size) - sigma**2 / 2)
    return np.maximum(1, np.round(drawn)).astype(np.int64)


def rate(lengths: NDArray[np.int64], seats: int, arm: str) -> float:
    """Tokens a second of one arm alone, many times over, while the queue is full."""
    engine, outputs = QueueEngine(lengths, seats, TOKENS), list[Output]()
    order = np.concatenate([np.random.default_rng(k).permutation(len(lengths)) for k in range(COPIES)])
    requests = [Request(k, [int(prompt) * TOKENS] * TOKENS, cache_salt=arm) for k, prompt in enumerate(order)]
    engine.run(requests, {}, lambda answer: outputs.append(answer) if isinstance(answer, Output) else None)
    began = min(output.scheduled_s for output in outputs)
    last = max(output.scheduled_s for output in outputs) - began
    tokens = sum(
        output.output_tokens * min(1.0, (last - start) / (output.at_s - start))
        for output in outputs
        for start in [output.scheduled_s - began]
        if start < last
    )
    return tokens / last


def true_gain(lengths: NDArray[np.int64], seats: int = SEATS) -> float:
    return rate(lengths, seats, CANDIDATE) / rate(lengths, seats, CONTROL) - 1


def trial_of(root: Path, sigma: float, blocks: int) -> Trial:
    plan, engine = queued_job(root, natural_lengths(sigma, BATCHES * SEATS), SEATS)
    assert plan.kind == "fed"
    return run_blocks(plan, engine, blocks)


@pytest.mark.parametrize(("sigma", "understated"), [(0.5, 0.05), (1.0, 0.15)])
def test_fed_slices_understate_a_gain_a_little_and_never_overstate_it(
    tmp_path: Path, sigma: float, understated: float
) -> None:
    truth = true_gain(natural_lengths(sigma, BATCHES * SEATS))
    trial = trial_of(tmp_path, sigma, 3)
    evidence = evidence_of(trial)
    seen = estimate(evidence.table)
    noise = 3 * float(seen.se)
    assert (1 - understated) * truth - noise < float(seen.gain) < truth + noise
    without_mixing = np.expm1(float(seen.log_gain) / (1 - evidence.foreign))
    assert without_mixing == pytest.approx(truth, abs=0.01 + noise)
    verdict = judge(trial)
    assert verdict is not None
    assert verdict.verdict == "promote"
    assert verdict == judge(Trial.read(trial.folder))


def test_longer_tails_mix_the_arms_more(tmp_path: Path) -> None:
    shares = [evidence_of(trial_of(tmp_path / str(sigma), sigma, 1)).foreign for sigma in (0.0, 0.5, 1.0)]
    assert shares == sorted(shares)
    assert shares[0] < 0.01 < shares[2] < 0.2


def test_a_block_is_one_run_of_the_engine_whose_queue_never_empties(tmp_path: Path) -> None:
    plan, engine = queued_job(tmp_path, natural_lengths(0.8, BATCHES * SEATS), SEATS)
    trial = run_blocks(plan, engine, 2)
    assert engine.runs == 2 + 2
    first = [part for part in trial.slices if part.block == 1]
    starts = np.array([part.start_s for part in first])
    ends = starts + [part.seconds for part in first]
    assert (starts[1:] > ends[:-1]).all(), "a wash-out lies between two windows"
    assert (trial.manifest.slices.washout, trial.manifest.slices.strata) == (2 * SEATS, 12)
    assert min(part.running for part in first) > 0.95 * SEATS


def test_drained_slices_invent_a_gain_where_only_few_running_requests_have_one() -> None:
    """The mutant: with many seats all experts are touched anyway, but not while a slice drains."""
    seats, slices = 256, 6
    lengths = natural_lengths(1.0, slices * 4 * seats, seed=3)
    engine = QueueEngine(lengths, seats, TOKENS)

    def drained_s(arm: str) -> float:
        parts = np.split(np.random.default_rng(2).permutation(len(lengths)), slices)
        requests = ([Request(int(k), [int(k) * TOKENS] * TOKENS, cache_salt=arm) for k in part] for part in parts)
        return sum(engine.run(part, {}, lambda _: None).wall_s for part in requests)

    assert drained_s(CONTROL) / drained_s(CANDIDATE) - 1 > true_gain(lengths, seats) + 0.02
