"""Percentiles and curves of any number of steps come out of bounded memory."""

from __future__ import annotations

import numpy as np
import pytest

from orderproof.engines.protocol import Steps
from orderproof.generate.step_summary import CURVE_POINTS, StepSummary


def lots(ms: np.ndarray, running: np.ndarray, size: int) -> list[Steps]:
    return [
        Steps(ms[k : k + size].astype(np.float32), running[k : k + size], (2 * running[k : k + size]).astype(np.int32))
        for k in range(0, len(ms), size)
    ]


def summary(ms: np.ndarray, running: np.ndarray, size: int = 256) -> StepSummary:
    steps = StepSummary()
    for lot in lots(ms, running, size):
        steps.add(lot)
    return steps


@pytest.mark.parametrize("count", [1, 7, 2000, 2001, 30_000])
def test_percentiles_are_those_of_the_whole_arrays_within_a_percent(count: int) -> None:
    random = np.random.default_rng(count)
    ms, running = random.lognormal(3, 0.7, count), random.integers(0, 17, count).astype(np.int32)
    steps = summary(ms, running)
    for percent in (5, 50, 95, 99):
        assert steps.percentile(percent) == pytest.approx(np.percentile(ms, percent, method="inverted_cdf"), rel=0.01)
    assert steps.steps == count
    assert steps.running_mean == pytest.approx(running.mean())
    assert steps.waiting_mean == pytest.approx(2 * running.mean())


@pytest.mark.parametrize("size", [1, 256, 5000])
def test_the_curve_holds_the_means_of_equal_runs_in_a_bounded_number_of_points(size: int) -> None:
    count = 5 * CURVE_POINTS + 3
    ms, running = np.arange(count, dtype=float), np.full(count, 4, np.int32)
    curve = summary(ms, running, size).curve()
    run = 8  # 2,000 points of 8 steps hold 10,003
    expected = [ms[k : k + run].mean() for k in range(0, count, run)]
    assert len(curve) <= CURVE_POINTS
    assert curve[:, 0] == pytest.approx(expected)
    assert set(curve[:, 1]) == {4.0}


def test_without_steps_all_figures_are_zero() -> None:
    steps = StepSummary()
    assert (steps.percentile(50), steps.running_mean, len(steps.curve())) == (0.0, 0.0, 0)
