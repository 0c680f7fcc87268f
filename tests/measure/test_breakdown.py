"""Gains by cluster and by the machine's pace."""

from __future__ import annotations

import numpy as np
import pytest

from orderproof.measure.breakdown import gain_in_slow_and_fast_pairs, gains_by_group, pair_gains, stratum_groups
from orderproof.measure.estimator import SliceTable


def table(gains: np.ndarray, noise: float = 0.01, blocks: int = 5, seed: int = 0) -> SliceTable:
    rng = np.random.default_rng(seed)
    shape = (blocks, len(gains))
    work = np.full(shape, 32.0)
    control = np.exp(rng.normal(0, noise, shape))
    candidate = np.exp(rng.normal(0, noise, shape)) / (1 + gains)
    return SliceTable(candidate, control, work, work, rng.choice([-1.0, 1.0], shape))


def test_each_cluster_has_its_own_gain_and_an_interval_that_holds_it() -> None:
    gains = np.array([0.4, 0.4, 0.1, 0.1, 0.0, 0.0])
    groups = gains_by_group(table(gains), ["chinese", "chinese", "maths", "maths", "code", "code"])
    assert [(group.name, group.strata, group.pairs) for group in groups] == [
        ("chinese", (0, 1), 10),
        ("maths", (2, 3), 10),
        ("code", (4, 5), 10),
    ]
    for group, truth in zip(groups, (0.4, 0.1, 0.0), strict=True):
        assert group.low is not None
        assert group.high is not None
        assert group.low < truth < group.high
        assert group.high - group.low < 0.05


def test_intervals_of_clusters_hold_the_truth_in_95_of_100() -> None:
    missed = 0
    for seed in range(400):
        (group,) = gains_by_group(table(np.full(3, 0.1), 0.1, 3, seed), ["one", "one", "one"])
        assert group.low is not None
        assert group.high is not None
        missed += not group.low < 0.1 < group.high
    assert 5 <= missed <= 40


def test_without_labels_neighbouring_strata_are_taken_together() -> None:
    names = [name for name, _ in stratum_groups([None] * 24)]
    assert len(names) == 12
    assert (names[0], names[-1]) == ("strata 1–2", "strata 23–24")
    many = stratum_groups([f"label {k}" for k in range(24)])
    assert len(many) == 12
    assert [name for name, _ in stratum_groups([None] * 6)] == [f"stratum {k}" for k in range(1, 7)]


def test_a_single_block_has_gains_without_intervals() -> None:
    (group,) = gains_by_group(table(np.full(2, 0.1), blocks=1), ["one", "one"])
    assert (group.low, group.high) == (None, None)
    assert group.gain == pytest.approx(0.1, abs=0.03)


def test_slow_and_fast_pairs_are_told_apart() -> None:
    seen = table(np.full(6, 0.1), blocks=12)
    pace = np.where(np.arange(12)[:, None] < 6, 3.0, 1.0)
    more = np.where(pace > 1, 1.2, 1.0)  # the gain grows while the machine is slow
    slow, fast = gain_in_slow_and_fast_pairs(
        SliceTable(seen.candidate_s * pace, seen.control_s * pace * more, *seen.arrays[2:])
    )
    assert slow == pytest.approx(0.32, abs=0.02)
    assert fast == pytest.approx(0.1, abs=0.02)


def test_a_pairs_gain_is_per_work() -> None:
    one = np.ones((1, 1))
    assert pair_gains(SliceTable(one, 3 * one, one, 2 * one, one)).item() == pytest.approx(0.5)
