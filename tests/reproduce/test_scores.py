"""Whether scores moved: the formula, its error rate, and neighbours that move together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from orderproof.reproduce.scores import ScoreComparison, compare_scores


def compared(then: list[float] | np.ndarray, now: list[float] | np.ndarray, batch: int = 1) -> ScoreComparison:
    before, after = np.asarray(then, float), np.asarray(now, float)
    return compare_scores("exact", before, after, np.arange(len(before)) // batch)


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    random = np.random.default_rng(0)
    then, now = random.random(40), random.random(40)
    told = compared(then, now)
    expected = stats.ttest_rel(now, then).confidence_interval(0.95)
    assert told.half_width is not None
    assert told.difference - told.half_width == pytest.approx(expected.low)
    assert told.difference + told.half_width == pytest.approx(expected.high)
    assert told.se == pytest.approx(np.std(now - then, ddof=1) / math.sqrt(40))


def test_the_same_scores_are_as_before() -> None:
    told = compared([1, 0, 1], [1, 0, 1])
    assert (told.answer, told.difference, told.se, told.changed) == ("as before", 0, 0, 0)


def test_one_flip_of_many_is_as_before_and_a_fall_of_all_moved() -> None:
    assert compared([1] * 300, [1] * 299 + [0]).answer == "as before"
    fallen = compared([1] * 300, [0] * 300)
    assert (fallen.answer, fallen.difference, fallen.changed) == ("moved", -1, 300)


def test_flips_that_cancel_are_as_before_though_scores_changed() -> None:
    told = compared([1, 0] * 50, [0, 1] * 50)
    assert (told.answer, told.difference, told.changed) == ("as before", 0, 100)


def test_a_single_output_cannot_tell() -> None:
    assert compared([1], [1]).answer == "as before"
    told = compared([1], [0])
    assert (told.answer, told.se) == ("too few to tell", None)


def false_alarms(batch: int, together: bool, judged_as: int) -> float:
    """How often scores that only churn are said to have moved: 320 outputs, a tenth of which may flip either way."""
    random, moved, trials = np.random.default_rng(1), 0, 2000
    for _ in range(trials):
        drawn = random.choice([-1, 0, 1], 320 // batch if together else 320, p=[0.05, 0.9, 0.05])
        change = np.repeat(drawn, batch) if together else drawn
        moved += compared(np.full(320, 0.5), 0.5 + change, judged_as).answer == "moved"
    return moved / trials


def test_churn_alone_seldom_moves_scores() -> None:
    assert 0.03 < false_alarms(8, together=False, judged_as=8) < 0.06
    assert false_alarms(8, together=True, judged_as=8) < 0.06, "neighbours that flip together"
    assert false_alarms(8, together=True, judged_as=1) > 0.2, "this test cannot see what clustering is for"
