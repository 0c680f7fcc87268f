"""Levels of the looks: against the published table and against simulated Brownian motions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from orderproof.measure.spending import SPENDING_POWER, spending_levels

TABLE = {
    ((2, 3, 5, 8, 12), 0.025): (0.00170, 0.00200, 0.00455, 0.00927, 0.01700),
    ((2, 3, 5, 8, 12), 0.05): (0.00340, 0.00415, 0.00940, 0.01928, 0.03595),
    ((2, 4, 8, 16, 32), 0.025): (0.00039, 0.00079, 0.00227, 0.00660, 0.01943),
    ((2, 4, 8, 16, 32), 0.05): (0.00078, 0.00161, 0.00462, 0.01353, 0.04025),
    ((2, 3, 5, 8), 0.025): (0.00313, 0.00379, 0.00861, 0.01767),
    ((2, 3, 5, 8), 0.05): (0.00625, 0.00788, 0.01789, 0.03707),
    ((2, 3, 5, 8, 12), 0.0125): (0.00085, 0.00097, 0.00220, 0.00446, 0.00810),
}
PATHS, CHUNK = 4_000_000, 500_000


@pytest.mark.parametrize(("looks", "alpha"), TABLE)
def test_levels_are_those_of_the_table(looks: tuple[int, ...], alpha: float) -> None:
    assert spending_levels(looks, alpha) == pytest.approx(TABLE[looks, alpha], abs=2e-4)


def test_a_single_look_spends_all_of_alpha() -> None:
    assert spending_levels((5,), 0.025) == (0.025,)


def test_brownian_paths_cross_as_often_as_alpha_is_spent() -> None:
    looks, alpha = (2, 3, 5, 8, 12), 0.025
    times = np.array(looks) / looks[-1]
    bounds = stats.norm.isf(spending_levels(looks, alpha))
    rng, crossed = np.random.default_rng(20261130), np.zeros(len(looks))
    for _ in range(PATHS // CHUNK):
        places = np.cumsum(rng.standard_normal((CHUNK, len(looks))) * np.sqrt(np.diff(times, prepend=0)), axis=1)
        crossed += np.maximum.accumulate(places / np.sqrt(times) > bounds, axis=1).sum(axis=0)
    spent = alpha * times**SPENDING_POWER
    assert crossed / PATHS == pytest.approx(spent, abs=float(4 * np.sqrt(alpha / PATHS)))


def test_all_looks_with_the_whole_of_alpha_would_spend_more() -> None:
    assert all(level < 0.025 for level in spending_levels((2, 3, 5, 8, 12), 0.025))
