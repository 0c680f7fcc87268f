"""Where a gain comes from: by cluster, and in slow and fast hours of the machine. Descriptive, it decides nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orderproof.measure.estimator import Floats, SliceTable, log_ratio_of_rates, pair_influence, t_upper

TAIL = 0.025  # of each side of an interval
MOST_GROUPS = 12


@dataclass(frozen=True)
class GroupGain:
    """The gain in some of the pairs."""

    name: str
    strata: tuple[int, ...]
    pairs: int
    gain: float
    low: float | None  # 95 % interval of this group alone; None: a single block has no spread
    high: float | None


def pair_gains(table: SliceTable) -> Floats:
    """float64[blocks, strata]: what each pair alone shows, as a fraction."""
    control, candidate = table.control_s / table.control_work, table.candidate_s / table.candidate_work
    return np.asarray(control / candidate - 1)


def gains_by_group(table: SliceTable, labels: Sequence[str | None]) -> list[GroupGain]:
    """The gain of each cluster, in the candidate's order; without labels, of neighbouring strata.

    Args:
        labels: of each stratum.
    """
    return [_group_gain(table, name, strata) for name, strata in stratum_groups(labels)]


def stratum_groups(labels: Sequence[str | None]) -> list[tuple[str, tuple[int, ...]]]:
    """Names and strata: one group for each label where there are few labels, else runs of neighbours."""
    named = [label for label in dict.fromkeys(labels) if label is not None]
    if named and len(named) <= MOST_GROUPS and None not in labels:
        return [(name, tuple(j for j, label in enumerate(labels) if label == name)) for name in named]
    runs = np.array_split(np.arange(len(labels)), min(MOST_GROUPS, len(labels)))
    return [(_run_name(run), tuple(run.tolist())) for run in runs]


def _run_name(run: NDArray[np.int64]) -> str:
    first, last = int(run[0]) + 1, int(run[-1]) + 1
    return f"stratum {first}" if first == last else f"strata {first}–{last}"


def _group_gain(table: SliceTable, name: str, strata: tuple[int, ...]) -> GroupGain:
    part = SliceTable(*(array[:, list(strata)] for array in table.capped()[0].arrays))
    gain = float(np.expm1(log_ratio_of_rates(part)))
    pairs = part.blocks * part.strata
    if part.blocks < 2:
        return GroupGain(name, strata, pairs, gain, None, None)
    influence = pair_influence(part)
    residual = influence - influence.mean(axis=0)
    degrees = part.strata * (part.blocks - 1)
    se = math.sqrt(float((residual**2).sum()) / degrees / pairs)
    reach = float(t_upper(TAIL, np.asarray(float(degrees)))) * se
    return GroupGain(name, strata, pairs, gain, (1 + gain) * math.exp(-reach) - 1, (1 + gain) * math.exp(reach) - 1)


def gain_in_slow_and_fast_pairs(table: SliceTable) -> tuple[float, float]:
    """The gain in the slowest and in the fastest third of pairs, both arms' time together: does it depend on the hour?

    Fractions.
    """
    limited = table.capped()[0]
    pace = (limited.candidate_s + limited.control_s) / (limited.candidate_work + limited.control_work)
    order = np.argsort(-pace, axis=None, kind="stable")
    third = max(1, len(order) // 3)

    def gain(picked: NDArray[np.int64]) -> float:
        a, b, wa, wb = (array.ravel()[picked].sum() for array in limited.arrays[:4])
        return float((b / wb) / (a / wa) - 1)

    return gain(order[:third]), gain(order[-third:])
