"""What a gain is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orderproof.measure.parts import arm_differences, gain_parts, prefix_gain
from orderproof.outputs.passes import CANDIDATE, CONTROL
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


def test_differences_of_the_arms_beside_their_order_are_named(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "t")
    assert arm_differences(trial) == ()
    preempted = {CANDIDATE: 13, CONTROL: 16}
    passes = [
        recorded.model_copy(update={"preempted": preempted[recorded.arm], "cached_tokens": preempted[recorded.arm]})
        for recorded in trial.passes
    ]
    slices = [part.model_copy(update={"cut_short": int(part.arm == CONTROL)}) for part in trial.slices]
    lines = arm_differences(replace(trial, passes=tuple(passes), slices=tuple(slices)))
    blocks = len(trial.passes) // 2
    assert lines[0].startswith(f"preempted: {13 * blocks} of the candidate's ")
    assert f", {16 * blocks} of the control's " in lines[0]
    assert lines[1].startswith("prefix cache: ")
    assert lines[2] == f"cut short by the model's length: 0 answers of the candidate, {len(slices) // 2} of the control"


def test_preemptions_of_arms_that_share_a_run_are_not_compared(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "t")
    passes = [recorded.model_copy(update={"preempted": None}) for recorded in trial.passes]
    assert arm_differences(replace(trial, passes=tuple(passes))) == ()
