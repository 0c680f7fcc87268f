"""How often passes disagree, and how uncertain a mean over prompts and passes is.

Sums run over integers or are exactly rounded (`math.fsum`): the same passes give the same bits on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from orderproof.outputs.quantiles import normal_quantile, t_quantile

CONFIDENCE = 0.95  # of a one-sided bound
POWER = 0.8
CHUNK_PROMPTS = 65_536  # digests compared at once: half a MiB per pass, so that a chunk stays in the CPU's cache

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Pairs:
    """Disagreements between passes of A, the shuffles, and of B, the candidate; other arms only in `differing`."""

    arms: tuple[str, ...]  # of each pass
    a: str
    b: str
    prompts: int
    differing: Int64  # [P, P] prompts on which two passes disagree
    within: Int64  # [N] pairs of A that disagree on a prompt
    across: Int64  # [N] pairs of A and B that do

    def disagreement(self, one: str, other: str, without: int | None = None) -> float | None:
        """Mean share of prompts that differ between passes of two arms, or within one; None if there is no such pair.

        `without` is the index of a pass to leave out.
        """
        rows, columns = (
            [index for index, arm in enumerate(self.arms) if arm == wanted and index != without]
            for wanted in (one, other)
        )
        pairs = len(rows) * (len(columns) - (one == other))
        return int(self.differing[np.ix_(rows, columns)].sum()) / (pairs * self.prompts) if pairs > 0 else None

    def within_rate(self) -> Float64:
        """float64[N]: per prompt, the share of pairs of A that disagree. Needs two passes of A."""
        a = self.arms.count(self.a)
        rate: Float64 = self.within / (a * (a - 1) // 2)
        return rate

    def excess_rate(self) -> Float64:
        """float64[N], whose mean is D_AB − D_AA. Needs two passes of A and one of B."""
        rate: Float64 = self.across / (self.arms.count(self.a) * self.arms.count(self.b)) - self.within_rate()
        return rate

    def jackknife_se(self) -> float | None:
        """SE of D_AB − D_AA over passes; None with fewer than three passes of A or two of B.

        Delete-one jackknife with each arm a stratum: Σ over arms of (n − 1)/n · Σ (θ₍₋ⱼ₎ − mean)² (Efron & Stein 1981).
        """
        variance = 0.0
        for arm in (self.a, self.b):
            excesses = []
            for index in (index for index, own in enumerate(self.arms) if own == arm):
                d_aa, d_ab = (self.disagreement(self.a, other, without=index) for other in (self.a, self.b))
                if d_aa is None or d_ab is None:
                    return None
                excesses.append(d_ab - d_aa)
            centre = mean(excesses)
            variance += math.fsum((x - centre) ** 2 for x in excesses) * (len(excesses) - 1) / len(excesses)
        return math.sqrt(variance)


def count_pairs(digests: Sequence[Int64], arms: Sequence[str], a: str, b: str) -> Pairs:
    """Compare every two passes on every prompt. Time P²N/2 comparisons, memory beyond the digests 2N integers."""
    prompts = len(digests[0])
    differing = np.zeros((len(digests), len(digests)), np.int64)
    within, across = np.zeros(prompts, np.int64), np.zeros(prompts, np.int64)
    for start in range(0, prompts, CHUNK_PROMPTS):
        chunk = slice(start, start + CHUNK_PROMPTS)
        rows = [own[chunk] for own in digests]
        for i, j in combinations(range(len(rows)), 2):
            differ = rows[i] != rows[j]
            differing[i, j] += np.count_nonzero(differ)
            if arms[i] == arms[j] == a:
                within[chunk] += differ
            elif {arms[i], arms[j]} == {a, b}:
                across[chunk] += differ
    return Pairs(tuple(arms), a, b, prompts, differing + differing.T, within, across)


@dataclass(frozen=True)
class Spread:
    """How uncertain a mean over prompts and passes is."""

    prompts: int
    se_prompts: float
    se_passes: float
    degrees: int  # of freedom, of Student's t

    @property
    def se(self) -> float:
        """The larger of the two: either source alone may rule."""
        return max(self.se_prompts, self.se_passes)

    @property
    def half_width(self) -> float:
        """From the mean to a one-sided 95 % bound."""
        return t_quantile(CONFIDENCE, self.degrees) * self.se

    @property
    def half_width_of_a_rate(self) -> float:
        """The same for a share of prompts."""
        return self._half_width_of_a_rate(self.se)

    def smallest_rate(self, tolerance: float, seen: float) -> float:
        """The smallest true rate whose lower bound clears `tolerance` with 80 % power, where the rate `seen` was seen.

        A higher rate has a larger SE: prompts are hit or not, one by one, which adds the binomial variance. So the rate
        is the fixed point of tolerance + half-width + z₀.₈ · SE. One that hits whole batches needs to be higher.
        """
        rate, base = tolerance, self.se**2 - _binomial_variance(seen, self.prompts)
        for _ in range(100):  # each step gains a digit or so
            se = math.sqrt(max(self.se**2, base + _binomial_variance(rate, self.prompts)))
            rate = min(1.0, tolerance + self._half_width_of_a_rate(se) + normal_quantile(POWER) * se)
        return rate

    def _half_width_of_a_rate(self, se: float) -> float:
        """Never below what N prompts can tell.

        With no difference at all the SE is 0, yet an event of probability 1 − 0.05^(1/N) stays unseen in N prompts one
        time in twenty: fewer than 299 prompts cannot exclude one point.
        """
        unseen = -math.expm1(math.log(1 - CONFIDENCE) / self.prompts)
        return max(t_quantile(CONFIDENCE, self.degrees) * se, unseen)


def _binomial_variance(rate: float, prompts: int) -> float:
    held = min(max(rate, 0.0), 1.0)
    return held * (1 - held) / prompts


def spread_of(values: Float64, runs: Int64, se_passes: float | None, passes: int) -> Spread | None:
    """The spread of the mean of values[N].

    Over prompts they are clustered by `runs`, the number of each prompt's run of neighbours, since neighbours share
    batches and flip together. Degrees of freedom: the fewer of G − 1 for G runs and passes − 2. None with one run only,
    or where `se_passes` is not known.
    """
    clustered = clustered_se(values, runs)
    if clustered is None or se_passes is None:
        return None
    se, degrees = clustered
    return Spread(len(values), se, se_passes, min(degrees, passes - 2))


def clustered_se(values: Float64, runs: Int64) -> tuple[float, int] | None:
    """SE of the mean of values[N] clustered by `runs`, and its degrees of freedom G − 1; None with one run only.

    G/(G − 1) · Σ (sum of a run's residuals)² / N² for G runs (Liang & Zeger 1986). Where every value is a run of its
    own this is the ordinary standard error of a mean, Σ (residual)² / (N(N − 1)).
    """
    numbers, run = np.unique(runs, return_inverse=True)
    if len(numbers) < 2:
        return None
    sums = np.bincount(run, weights=values - mean(values))
    variance = math.fsum(sums**2) * len(numbers) / (len(numbers) - 1) / len(values) ** 2
    return math.sqrt(variance), len(numbers) - 1


def mean(values: Sequence[float] | Float64) -> float:
    """Exactly rounded, whatever the order of the values."""
    return math.fsum(values) / len(values)
