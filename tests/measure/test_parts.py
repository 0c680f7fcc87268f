"""What a gain is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orderproof.measure.parts import gain_parts, prefix_gain
from orderproof.outputs.passes import CANDIDATE
from tests.support.trial_maker import OUTPUT_TOKENS, make_trial


def test_faster_steps_are_the_gain_where_batches_are_equally_full(tmp_path: Path) -> None:
    parts = {part.name: part.gain for part in gain_parts(make_trial(tmp_path / "t", gain=0.2, noise=0.001))}
    assert parts["faster steps"] == pytest.approx(0.2, abs=0.01)
    assert parts["fuller batches"] == pytest.approx(0)
    assert parts["prefix reuse"] == 0
    assert parts["preemptions"] is None


def test_prefix_reuse_is_worth_the_prefill_that_it_saves(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "t")
    cached = [
        recorded.model_copy(update={"cached_tokens": recorded.prompt_tokens // 2 if recorded.arm == CANDIDATE else 0})
        for recorded in trial.passes
    ]
    cost = trial.manifest.slices.warm_up.prefill_cost
    saved = cost * 10 / (OUTPUT_TOKENS + cost * 20)
    assert prefix_gain(replace(trial, passes=tuple(cached))) == pytest.approx(1 / (1 - saved) - 1)


def test_without_a_complete_block_there_are_no_parts(tmp_path: Path) -> None:
    assert gain_parts(make_trial(tmp_path / "t", blocks=0)) == ()
