"""A verdict rests on what was registered: a record that departs from its plan carries none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.job.errors import OrderproofError
from orderproof.job.hashing import ids_sha256
from orderproof.measure.evaluate import control_noise, evidence_of, is_out_of_time, is_vacuous, judge, slice_table
from orderproof.measure.trial_records import SliceRecord
from orderproof.measure.trial_store import EvidenceError, Trial
from orderproof.measure.verdict import Rule
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED
from tests.support.trial_maker import make_trial

Change = Callable[[SliceRecord], dict[str, Any]]


def changed(trial: Trial, arm: str, change: Change, block: int = 3, stratum: int = 2) -> Trial:
    """The trial with one slice's record altered."""
    slices = (
        part.model_copy(update=change(part))
        if (part.block, part.arm, part.stratum, part.attempt) == (block, arm, stratum, 0)
        else part
        for part in trial.slices
    )
    return replace(trial, slices=tuple(slices))


@pytest.mark.parametrize("third_arm", [False, True])
def test_a_trial_that_kept_its_plan_has_a_verdict_and_the_same_from_its_folder(tmp_path: Path, third_arm: bool) -> None:
    trial = make_trial(tmp_path / "trial", third_arm=third_arm, repeated_block=2)
    verdict = judge(trial)
    assert verdict is not None
    assert verdict.blocks == 5
    assert judge(Trial.read(trial.folder)) == verdict


def test_between_the_looks_there_is_none(tmp_path: Path) -> None:
    assert judge(make_trial(tmp_path / "trial", blocks=4)) is None


@pytest.mark.parametrize(
    ("third_arm", "arm"),
    [(False, CANDIDATE), (False, CONTROL), (True, CONTROL), (True, SHUFFLED), (True, CANDIDATE)],
)
def test_a_slice_in_another_order_than_the_registered_one_is_no_evidence(
    tmp_path: Path, third_arm: bool, arm: str
) -> None:
    trial = make_trial(tmp_path / "trial", third_arm=third_arm)
    with pytest.raises(EvidenceError, match=rf"block 3, {arm} slice of stratum 2 was not sent in the order"):
        judge(changed(trial, arm, lambda part: {"order_sha256": "0" * 64}))


@pytest.mark.parametrize("change", [lambda part: {"first": part.first + 8}, lambda part: {"turn": 1 - part.turn}])
def test_a_slice_at_another_place_or_after_another_coin_is_no_evidence(tmp_path: Path, change: Change) -> None:
    trial = make_trial(tmp_path / "trial")
    with pytest.raises(EvidenceError, match="where the plan's seed puts it"):
        judge(changed(trial, CANDIDATE, change))


@pytest.mark.parametrize("change", [{"stratum": 7}, {"stratum": 3}, {"arm": "other"}])
def test_a_block_without_one_slice_of_each_arm_and_stratum_is_no_evidence(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    trial = make_trial(tmp_path / "trial")
    with pytest.raises(EvidenceError, match="not one slice of each arm and stratum"):
        judge(changed(trial, CANDIDATE, lambda _: change))


def test_an_incomplete_block_does_not_count(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "trial", blocks=5)
    torn = replace(trial, passes=trial.passes[:-1])
    assert len(torn.blocks()) == 4
    assert judge(torn) is None
    assert slice_table(torn).blocks == 4


def test_outputs_of_other_prompts_than_the_registered_ones_are_no_evidence(tmp_path: Path) -> None:
    others = ids_sha256(f"q{i:05d}" for i in range(48))
    with pytest.raises(EvidenceError, match="is not of the prompts that were registered"):
        judge(make_trial(tmp_path / "trial", measured_sha256=others))


def test_a_pass_of_fewer_prompts_than_the_others_is_no_evidence(tmp_path: Path) -> None:
    trial, fewer = make_trial(tmp_path / "trial"), make_trial(tmp_path / "fewer", prompts=47)
    tokens = Path("tokens") / "b05-candidate.parquet"
    (fewer.folder / tokens).rename(trial.folder / tokens)
    with pytest.raises(OrderproofError, match="b05-candidate"):
        judge(trial)


def test_the_table_holds_times_work_and_coins_by_block_and_stratum(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "trial", blocks=2, repeated_block=1)
    table = slice_table(trial)
    assert (table.blocks, table.strata) == (2, 6)
    for number, block in enumerate(trial.blocks()):
        for stratum in range(6):
            part, other = block.slices[CANDIDATE, stratum], block.slices[CONTROL, stratum]
            assert table.candidate_s[number, stratum] == part.seconds
            assert table.control_s[number, stratum] == other.seconds
            assert table.candidate_work[number, stratum] == part.requests
            assert table.candidate_first[number, stratum] == (1 if part.start_s < other.start_s else -1)
    assert evidence_of(trial).tokens is None
    assert evidence_of(trial).foreign == 0


def test_the_controls_own_noise_holds_zero_and_grows_with_the_machines(tmp_path: Path) -> None:
    quiet, noisy = (control_noise(make_trial(tmp_path / str(noise), gain=0.5, noise=noise)) for noise in (0.005, 0.05))
    assert quiet is not None
    assert noisy is not None
    assert noisy.gain_low < quiet.gain_low < 0 < quiet.gain_high < noisy.gain_high
    third = control_noise(make_trial(tmp_path / "third", third_arm=True, gain=0.5))
    assert third is not None
    assert third.gain_low < 0 < third.gain_high


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_trial_ends_where_its_budget_leaves_no_room_for_the_next_look(tmp_path: Path) -> None:
    free = make_trial(tmp_path / "free", blocks=2, gain=0.02, noise=0.05)
    block_s = np.mean([block.passes[CONTROL].block_s for block in free.blocks()])
    for blocks, budget, ended in ((2, 4.0, True), (2, 6.0, False), (1, 6.0, False), (1, 3.0, True)):
        rule = Rule(looks=(5, 10), budget_s=float(budget * block_s))
        trial = make_trial(tmp_path / f"{blocks}-{budget}", blocks=blocks, gain=0.02, noise=0.05, rule=rule)
        assert is_out_of_time(trial) == ended
        verdict = judge(trial)
        assert (verdict is not None) == ended
        assert verdict is None or verdict.verdict == "inconclusive"


def test_a_verdict_of_12_blocks_of_48_pairs_is_quick(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "trial", blocks=12, prompts=48, looks=(2, 3, 5, 8, 12), gain=0.02, noise=0.05)
    started = time.monotonic()
    assert judge(Trial.read(trial.folder)) is not None
    assert time.monotonic() - started < 10  # under two seconds on an idle machine


@pytest.mark.parametrize(
    ("sampling", "vacuous"),
    [
        ({}, True),
        ({"temperature": None}, True),
        ({"temperature": 1}, True),
        ({"temperature": 0.7}, False),
        ({"temperature": 0}, False),
        ({"temperature": 1, "seed": 3}, False),
    ],
)
def test_agreement_is_chance_at_temperature_1_without_a_seed(sampling: dict[str, Any], vacuous: bool) -> None:
    assert is_vacuous(sampling) == vacuous
