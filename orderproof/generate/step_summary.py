"""The steps of a run of any length, in memory of one size: percentiles, means and a curve.

In: lots of steps as the engine tells of them. Out: a `StepSummary` that answers like the whole arrays would, within 1
%. Knows nothing of engines or of what is done with the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import Steps

LOWEST_MS, HIGHEST_MS = 1e-3, 1e7  # a microsecond to three hours
BIN_WIDTH = 0.01  # of the logarithm: a percentile is right within half of it
CURVE_POINTS = 2000


class StepSummary:
    """A histogram of step times on a logarithmic scale, and curves of at most CURVE_POINTS equal runs of steps."""

    def __init__(self) -> None:
        self.steps = 0
        self._counts = np.zeros(math.ceil(math.log(HIGHEST_MS / LOWEST_MS) / BIN_WIDTH), np.int64)
        self._curve = np.zeros((CURVE_POINTS, 3))  # sums of ms, running and waiting
        self._run = 1  # steps that make one point

    def add(self, steps: Steps) -> None:
        """Take in the next steps."""
        bins = (np.log(np.clip(steps.ms, LOWEST_MS, HIGHEST_MS) / LOWEST_MS) / BIN_WIDTH).astype(np.int64)
        np.add.at(self._counts, np.minimum(bins, len(self._counts) - 1), 1)
        for values in self._lots(np.stack([steps.ms, steps.running, steps.waiting], axis=1).astype(np.float64)):
            points = (self.steps + np.arange(len(values))) // self._run
            np.add.at(self._curve, points, values)
            self.steps += len(values)

    def percentile(self, percent: float) -> float:
        """Step time in ms that `percent` of the steps do not exceed; 0 without steps."""
        if not self.steps:
            return 0.0
        rank = max(1, math.ceil(self.steps * percent / 100))
        found = int(np.searchsorted(self._counts.cumsum(), rank))
        return LOWEST_MS * math.exp((found + 0.5) * BIN_WIDTH)

    @property
    def running_mean(self) -> float:
        """Sequences in the batch, over the steps."""
        return float(self._curve[:, 1].sum() / max(1, self.steps))

    @property
    def waiting_mean(self) -> float:
        """Sequences in the engine's queue, over the steps."""
        return float(self._curve[:, 2].sum() / max(1, self.steps))

    def curve(self) -> NDArray[np.float64]:
        """float[points, 3]: means of step time in ms, running and waiting sequences over equal runs of steps."""
        starts = np.arange(0, self.steps, self._run)
        lengths = np.minimum(self._run, self.steps - starts)
        curve: NDArray[np.float64] = self._curve[: len(starts)] / lengths[:, None]
        return curve

    def _lots(self, values: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
        """Cut where the curve is full, and halve its points there."""
        while len(values):
            room = CURVE_POINTS * self._run - self.steps
            if not room:
                self._curve[: CURVE_POINTS // 2] = self._curve[0::2] + self._curve[1::2]
                self._curve[CURVE_POINTS // 2 :] = 0
                self._run *= 2
                continue
            yield values[:room]
            values = values[room:]
