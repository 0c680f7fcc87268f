"""Significance levels for a trial that is judged at several looks: how much of alpha each look may spend.

By the look at n of n_max blocks, alpha·(n/n_max)^1.5 is spent (a power-family spending function; Kim & DeMets 1987).
The level of a look follows by recursion over a Brownian motion that is watched at the looks (Armitage, McPherson &
Rowe 1969; Lan & DeMets 1983).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

SPENDING_POWER = 1.5
GRID_POINTS = 2001
REACH_SD = 8.0  # the grid ends so many standard deviations below zero: less than 1e-15 of the paths lie beyond
BISECTIONS = 60

Floats = NDArray[np.float64]


@cache
def spending_levels(looks: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """One-sided significance level of each look, so that all looks together reject with probability `alpha`.

    Args:
        looks: increasing numbers of blocks; all of alpha is spent at the last.
        alpha: one-sided, between 0 and 0.5.

    Returns:
        one level per look, to be used with the quantile of the look's own distribution (the significance-level approach
        of Jennison & Turnbull 2000, section 3.3). Accurate to about 1e-4.
    """
    from scipy import special

    times = np.array(looks, np.float64) / looks[-1]
    spent = alpha * times**SPENDING_POWER
    levels = [float(spent[0])]
    places, weighted = np.zeros(1), np.ones(1)  # where the paths that are still running are, and how many: all at 0
    sds, steps = np.sqrt(times), np.sqrt(np.diff(times, prepend=0.0))
    bound = float(-special.ndtri(spent[0]) * sds[0])
    for look, share in enumerate(np.diff(spent), start=1):
        places, weighted = _step(places, weighted, steps[look - 1], sds[look - 1], bound)
        bound = _bound(places, weighted, steps[look], share, sds[look])
        levels.append(float(special.ndtr(-bound / sds[look])))
    return tuple(levels)


def _step(places: Floats, weighted: Floats, step_sd: float, sd: float, bound: float) -> tuple[Floats, Floats]:
    """The running paths one look later, without those that crossed the bound there."""
    later = np.linspace(-REACH_SD * sd, bound, GRID_POINTS)
    kernel = np.exp(-0.5 * ((later[:, None] - places) / step_sd) ** 2) / (step_sd * np.sqrt(2 * np.pi))
    trapezoid = np.full(GRID_POINTS, later[1] - later[0])
    trapezoid[[0, -1]] /= 2
    return later, np.asarray((kernel @ weighted) * trapezoid)


def _bound(places: Floats, weighted: Floats, step_sd: float, share: float, sd: float) -> float:
    """The value that the paths which are still running exceed at the next look with probability `share`."""
    from scipy import special

    low, high = 0.0, REACH_SD * sd
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        exceeded = float((weighted * special.ndtr((places - middle) / step_sd)).sum())
        low, high = (middle, high) if exceeded > share else (low, middle)
    return (low + high) / 2
