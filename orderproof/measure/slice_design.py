"""How a block of a trial is laid out in time: slices of both arms in pairs, in an order that coins decide.

A block has as many pairs as strata. Stratum j is the j-th run of neighbours in the candidate's order, the same in every
block; beside it runs a slice of the control with as many prompts. Everything follows from the registered seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED

MOST_STRATA, FEWEST_STRATA = 48, 6
CLEAN_BATCHES = 2  # of a clean slice, at least
CLEAN_S = 1.0  # at least: a call of the engine costs about 20 ms
FED_BATCHES, FED_BATCHES_OF_FEW = 8, 4  # of a fed slice
MANY_BATCHES = 96  # of prompts, from which on fed slices are long
WASHOUT_BATCHES = 2  # of a fed slice, before its clock starts; one where all requests generate the same number

Kind = Literal["clean", "fed"]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Slice:
    """A run of prompts of one arm, sent one after another."""

    slot: int  # place of its pair in the block, from 0
    turn: int  # place in the pair: 0, 1; 2 for a slice of the third arm, which is in no pair
    arm: str
    stratum: int  # of its pair
    first: int  # place of its first prompt in the arm's order
    prompts: Ints  # indices among the measured prompts, in the order of sending


def batches_per_slice(kind: Kind, prompts: int, seats: int, prompts_per_s: float | None) -> int:
    """How many batches a slice should have.

    Args:
        seats: prompts that run at once, on all replicas.
        prompts_per_s: of the warm-up; None: not known yet.
    """
    if kind == "fed":
        return FED_BATCHES if prompts >= MANY_BATCHES * seats else FED_BATCHES_OF_FEW
    wanted = CLEAN_BATCHES if prompts_per_s is None else math.ceil(CLEAN_S * prompts_per_s / seats)
    few = prompts // seats // FEWEST_STRATA  # of a small and fast job: short slices rather than too few
    return max(CLEAN_BATCHES, min(wanted, few))


def slice_sizes(prompts: int, seats: int, batches: int) -> tuple[int, ...]:
    """Prompts of each stratum: multiples of `seats` but for the last one, as equal as can be.

    Empty where there are too few prompts for FEWEST_STRATA slices.
    """
    strata = min(prompts // (batches * seats), MOST_STRATA)
    if strata < FEWEST_STRATA:
        return ()
    whole = [seats * len(part) for part in np.array_split(np.arange(prompts // seats), strata)][::-1]
    return (*whole[:-1], whole[-1] + prompts % seats)


def fewest_prompts(kind: Kind, seats: int) -> int:
    """The fewest prompts that can be measured."""
    return FEWEST_STRATA * seats * (CLEAN_BATCHES if kind == "clean" else FED_BATCHES_OF_FEW)


def lay_out_block(
    sizes: Sequence[int], candidate: Ints, control: Ints | None, *, third_arm: bool, seeds: Sequence[int]
) -> list[Slice]:
    """All slices of a block in the order of sending.

    Args:
        sizes: prompts of each stratum.
        candidate: the candidate's order of the measured prompts.
        control: the control's fixed order; None: a fresh shuffle.
        third_arm: whether each pair is followed by a slice of a fresh shuffle.
        seeds: coin seed and block: two blocks share no seeds.
    """
    draws = [np.random.default_rng([*seeds, k]) for k in range(3)]  # each in its own stream, so that none moves another
    slots = draws[0].permutation(len(sizes))  # slot → stratum
    first = balanced_coins(draws[1], len(sizes))
    cuts = np.concatenate([[0], np.cumsum(sizes)])
    shuffled = _cut(shuffle_of_block(len(candidate), seeds), [sizes[j] for j in slots])
    if control is None:
        beside = shuffled
    else:
        pieces = draws[2].permutation(len(sizes))  # the control's k-th run is beside stratum pieces[k]
        runs = _cut(control, [sizes[j] for j in pieces])
        beside = [runs[int(np.flatnonzero(pieces == stratum)[0])] for stratum in slots]
    slices = []
    for slot, stratum in enumerate(slots.tolist()):
        own = (int(cuts[stratum]), candidate[cuts[stratum] : cuts[stratum + 1]])
        pair = [(CANDIDATE, own), (CONTROL, beside[slot])]
        for turn, (arm, (place, prompts)) in enumerate(pair if first[slot] else pair[::-1]):
            slices.append(Slice(slot, turn, arm, stratum, place, prompts))
        if third_arm:
            slices.append(Slice(slot, 2, SHUFFLED, stratum, *shuffled[slot]))
    return slices


def shuffle_of_block(prompts: int, seeds: Sequence[int]) -> Ints:
    """The block's shuffle: of the control, or of the third arm where the control has a fixed order."""
    return np.random.default_rng([*seeds, 3]).permutation(prompts)


def lay_out_repeat(block: Sequence[Slice], strata: Sequence[int], *, seeds: Sequence[int]) -> list[Slice]:
    """The pairs of some strata once more: the same prompts, new coins."""
    first = balanced_coins(np.random.default_rng(seeds), len(strata))
    slices = []
    for slot, stratum in enumerate(sorted(strata)):
        before = {part.arm: part for part in block if part.stratum == stratum}
        pair = (CANDIDATE, CONTROL) if first[slot] else (CONTROL, CANDIDATE)
        for turn, arm in enumerate((*pair, *(arm for arm in before if arm not in pair))):
            slices.append(Slice(slot, turn, arm, stratum, before[arm].first, before[arm].prompts))
    return slices


def balanced_coins(rng: np.random.Generator, pairs: int) -> NDArray[np.bool_]:
    """Whether the candidate's slice comes first: in a random half of the pairs; an odd pair has a fair coin."""
    coins = np.arange(pairs) < pairs // 2
    if pairs % 2:
        coins[-1] = bool(rng.integers(0, 2))
    return rng.permutation(coins)


def _cut(order: Ints, sizes: Sequence[int]) -> list[tuple[int, Ints]]:
    """Neighbouring runs of an order: the place of the first prompt, and the prompts."""
    places = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    return [(place, order[place : place + size]) for place, size in zip(places[:-1], sizes, strict=True)]
