"""The layout of a block: every prompt once in each arm, slots and coins by the seed alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from orderproof.measure.slice_design import (
    MOST_STRATA,
    Slice,
    balanced_coins,
    batches_per_slice,
    fewest_prompts,
    lay_out_block,
    lay_out_repeat,
    slice_sizes,
)
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED

SIZES = (16, 16, 16, 16, 16, 19)
CANDIDATE_ORDER = np.random.default_rng(1).permutation(sum(SIZES))


def layout(block: int = 1, *, control: bool = False, third_arm: bool = False) -> list[Slice]:
    fixed = np.arange(sum(SIZES)) if control else None
    return lay_out_block(SIZES, CANDIDATE_ORDER, fixed, third_arm=third_arm, seeds=(7, block))


@pytest.mark.parametrize(("control", "third_arm"), [(False, False), (True, False), (True, True)])
def test_each_arm_sends_every_prompt_once_in_slices_as_large_as_the_candidates(control: bool, third_arm: bool) -> None:
    slices = layout(control=control, third_arm=third_arm)
    arms = (CANDIDATE, CONTROL, SHUFFLED) if third_arm else (CANDIDATE, CONTROL)
    for arm in arms:
        own = [part for part in slices if part.arm == arm]
        assert sorted(np.concatenate([part.prompts for part in own]).tolist()) == list(range(sum(SIZES)))
        assert sorted(part.stratum for part in own) == list(range(6))
        assert all(len(part.prompts) == SIZES[part.stratum] for part in own)


def test_a_stratum_is_the_same_run_of_neighbours_in_every_block() -> None:
    for block in (1, 2):
        for part in layout(block):
            if part.arm == CANDIDATE:
                assert part.prompts.tolist() == CANDIDATE_ORDER[part.first : part.first + SIZES[part.stratum]].tolist()
                assert part.first == sum(SIZES[: part.stratum])


def test_a_fixed_control_keeps_runs_of_its_own_order_and_shuffles_are_fresh() -> None:
    fixed = [part.prompts for part in layout(control=True) if part.arm == CONTROL]
    assert all(np.array_equal(prompts, np.arange(prompts[0], prompts[-1] + 1)) for prompts in fixed)
    first, second = ([part.prompts.tolist() for part in layout(block) if part.arm == CONTROL] for block in (1, 2))
    assert first != second


def test_the_slices_of_a_pair_are_neighbours_in_time() -> None:
    slices = layout(control=True, third_arm=True)
    for slot in range(6):
        arms = [(part.arm, part.turn, part.stratum) for part in slices if part.slot == slot]
        assert [turn for _, turn, _ in arms] == [0, 1, 2]
        assert {arm for arm, turn, _ in arms if turn < 2} == {CANDIDATE, CONTROL}
        assert len({stratum for *_, stratum in arms}) == 1
    assert [part.slot for part in slices] == sorted(part.slot for part in slices)


@pytest.mark.parametrize("pairs", [6, 7, 24])
def test_in_half_of_the_pairs_the_candidate_is_first(pairs: int) -> None:
    counts = Counter(int(balanced_coins(np.random.default_rng(k), pairs).sum()) for k in range(400))
    assert set(counts) <= {pairs // 2, -(-pairs // 2)}
    assert len(counts) == 1 + pairs % 2
    first = np.mean([balanced_coins(np.random.default_rng(k), pairs) for k in range(2000)], axis=0)
    assert first == pytest.approx(0.5, abs=0.05)


def test_every_stratum_comes_in_every_slot_equally_often() -> None:
    counts = np.zeros((6, 6))
    for block in range(1200):
        for part in layout(block):
            counts[part.slot, part.stratum] += part.turn == 0
    assert counts == pytest.approx(200, abs=4 * 200**0.5)


def test_the_seed_and_the_block_decide_everything() -> None:
    same, again, other = ([(p.arm, p.stratum, p.prompts.tolist()) for p in layout(block)] for block in (3, 3, 4))
    assert same == again
    assert same != other


def test_a_repeated_pair_has_the_same_prompts_and_a_new_coin() -> None:
    block = layout(control=True, third_arm=True)
    firsts = set()
    for seed in range(20):
        again = lay_out_repeat(block, [4, 2], seeds=(7, 1, 10 + seed))
        assert [(part.slot, part.stratum) for part in again] == [(0, 2)] * 3 + [(1, 4)] * 3
        firsts.add(again[0].arm)
        for part in again:
            before = next(b for b in block if (b.arm, b.stratum) == (part.arm, part.stratum))
            assert part.prompts.tolist() == before.prompts.tolist()
    assert firsts == {CANDIDATE, CONTROL}


@pytest.mark.parametrize(
    ("prompts", "seats", "batches", "strata"), [(768, 16, 2, 24), (768, 16, 8, 6), (5000, 16, 2, 48), (770, 16, 2, 24)]
)
def test_slices_are_whole_batches_but_for_the_last(prompts: int, seats: int, batches: int, strata: int) -> None:
    sizes = slice_sizes(prompts, seats, batches)
    assert (len(sizes), sum(sizes)) == (strata, prompts)
    assert strata <= MOST_STRATA
    assert all(size % seats == 0 for size in sizes[:-1])
    assert sizes[-1] % seats == prompts % seats
    assert min(sizes) >= batches * seats


def test_too_few_prompts_have_no_slices() -> None:
    assert slice_sizes(fewest_prompts("clean", 16) - 1, 16, 2) == ()
    assert len(slice_sizes(fewest_prompts("clean", 16), 16, 2)) == 6
    assert fewest_prompts("fed", 16) == 24 * 16


@pytest.mark.parametrize(
    ("kind", "prompts", "rate", "batches"),
    [
        ("clean", 768, 20.0, 2),  # 32 prompts take more than a second
        ("clean", 768, 60.0, 4),
        ("clean", 768, 1000.0, 8),  # six slices rather than one long one
        ("clean", 768, None, 2),
        ("fed", 96 * 16, 1.0, 8),
        ("fed", 95 * 16, 1.0, 4),
    ],
)
def test_a_slice_lasts_long_enough(kind: str, prompts: int, rate: float | None, batches: int) -> None:
    assert batches_per_slice("clean" if kind == "clean" else "fed", prompts, 16, rate) == batches
