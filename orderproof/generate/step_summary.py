"""The scheduler steps of a run of any length in constant memory: percentiles within 1 %, means and a curve."""

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
    """A histogram of step times on a logarithmic scale, and a curve of at most CURVE_POINTS means."""

    def __init__(self) -> None:
        self.steps = 0
        self._counts = np.zeros(math.ceil(math.log(HIGHEST_MS / LOWEST_MS) / BIN_WIDTH), np.int64)
        self._curve = np.zeros((CURVE_POINTS, 3))  # sums of ms, running and waiting
        self._steps_per_point = 1

    def add(self, steps: Steps) -> None:
        """Add the next steps."""
        bins = (np.log(np.clip(steps.ms, LOWEST_MS, HIGHEST_MS) / LOWEST_MS) / BIN_WIDTH).astype(np.int64)
        np.add.at(self._counts, np.minimum(bins, len(self._counts) - 1), 1)
        for values in self._fitting(np.stack([steps.ms, steps.running, steps.waiting], axis=1).astype(np.float64)):
            points = (self.steps + np.arange(len(values))) // self._steps_per_point
            np.add.at(self._curve, points, values)
            self.steps += len(values)

    def percentile(self, percent: float) -> float:
        """Step time in ms that `percent` of the steps do not exceed; 0 without steps."""
        if not self.steps:
            return 0.0
        rank = max(1, math.ceil(self.steps * percent / 100))
        rank_bin = int(np.searchsorted(self._counts.cumsum(), rank))
        return LOWEST_MS * math.exp((rank_bin + 0.5) * BIN_WIDTH)

    @property
    def running_mean(self) -> float:
        """Sequences in the batch, over the steps."""
        return float(self._curve[:, 1].sum() / max(1, self.steps))

    @property
    def waiting_mean(self) -> float:
        """Sequences in the engine's queue, over the steps."""
        return float(self._curve[:, 2].sum() / max(1, self.steps))

    def curve(self) -> NDArray[np.float64]:
        """float[points, 3]: means of step time in ms, running and waiting sequences, each over as many steps."""
        starts = np.arange(0, self.steps, self._steps_per_point)
        lengths = np.minimum(self._steps_per_point, self.steps - starts)
        curve: NDArray[np.float64] = self._curve[: len(starts)] / lengths[:, None]
        return curve

    def _fitting(self, values: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
        """Parts of the values that fit on the curve; where it is full, two points become one."""
        while len(values):
            room = CURVE_POINTS * self._steps_per_point - self.steps
            if not room:
                self._curve[: CURVE_POINTS // 2] = self._curve[0::2] + self._curve[1::2]
                self._curve[CURVE_POINTS // 2 :] = 0
                self._steps_per_point *= 2
                continue
            yield values[:room]
            values = values[room:]
