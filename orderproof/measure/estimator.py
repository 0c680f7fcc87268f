"""The gain of one order over another from pairs of slices, with its standard error.

A pair is one slice of each arm, next to each other in time. A block holds one pair for each stratum (a run of
neighbours in the candidate's order), and in a complete block each arm processes every prompt once. The only thing
relied on is the coin that decided which slice of a pair came first: drifts and bursts of the machine then have mean
zero in the estimate, and their spread is measured.

All functions take leading axes, so that simulations run thousands of trials at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CAP = 3.0  # times the block's median time per work: what is beyond it counts as a stall
FEW_BLOCKS = 3  # up to here the larger of two standard errors is taken

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SliceTable:
    """Slices of complete blocks. Every array is float64[..., blocks, strata]; leading axes are independent trials."""

    candidate_s: Floats  # seconds
    control_s: Floats
    candidate_work: Floats  # requests, or tokens: what both arms have to do in all, in the same unit
    control_work: Floats
    candidate_first: Floats  # +1 where the candidate's slice came first, −1 where the control's did

    def __post_init__(self) -> None:
        """Raises ValueError unless all arrays have one shape of at least two axes."""
        shapes = {array.shape for array in self.arrays}
        if len(shapes) != 1 or len(next(iter(shapes))) < 2:
            raise ValueError(f"slices must form complete blocks of equal shape [blocks, strata], not {sorted(shapes)}")

    @property
    def arrays(self) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """All five, in the order of the fields."""
        return (self.candidate_s, self.control_s, self.candidate_work, self.control_work, self.candidate_first)

    @property
    def blocks(self) -> int:
        return int(self.candidate_s.shape[-2])

    @property
    def strata(self) -> int:
        return int(self.candidate_s.shape[-1])

    @property
    def measurable(self) -> bool:
        """Whether every time and every work is a finite number above zero."""
        return all(bool((np.isfinite(array) & (array > 0)).all()) for array in self.arrays[:4])

    def until(self, blocks: int) -> SliceTable:
        """The first blocks alone."""
        return SliceTable(*(array[..., :blocks, :] for array in self.arrays))

    def capped(self, cap: float = CAP) -> tuple[SliceTable, Ints, Ints]:
        """Times limited to `cap` times the block's median of seconds per work, both arms together.

        Returns:
            the limited table; how many slices of the candidate and of the control were limited, int64[...].
        """
        candidate, control = self.candidate_s / self.candidate_work, self.control_s / self.control_work
        median = np.median(np.concatenate([candidate, control], axis=-1), axis=-1, keepdims=True)
        limited = SliceTable(
            np.minimum(self.candidate_s, cap * median * self.candidate_work),
            np.minimum(self.control_s, cap * median * self.control_work),
            *self.arrays[2:],
        )
        counts = ((rates > cap * median).sum(axis=(-2, -1)) for rates in (candidate, control))
        return limited, *counts


@dataclass(frozen=True)
class Estimate:
    """The gain after some blocks; arrays have the table's leading axes, () for a single trial."""

    blocks: int
    strata: int
    log_gain: Floats  # ln(seconds per work in the control ÷ in the candidate), total over total
    se: Floats  # of log_gain
    effective_strata: Floats  # as many strata of equal duration would carry as many degrees of freedom
    capped_candidate: Ints  # slices whose time was limited
    capped_control: Ints
    constant: NDArray[np.bool_]  # all pairs gave the same value, which timed slices never do

    @property
    def gain(self) -> Floats:
        """As a fraction: 0.03 is 3 %."""
        return np.asarray(np.expm1(self.log_gain))

    @property
    def degrees(self) -> Floats:
        """Degrees of freedom of `se`."""
        return degrees_of_freedom(self.blocks, self.strata, self.effective_strata)

    def low(self, level: float) -> Floats:
        """Lower bound of log_gain at a one-sided significance level."""
        return np.asarray(self.log_gain - t_upper(level, self.degrees) * self.se)

    def high(self, level: float) -> Floats:
        """Upper bound of log_gain at a one-sided significance level."""
        return np.asarray(self.log_gain + t_upper(level, self.degrees) * self.se)


def estimate(table: SliceTable, *, cap: float = CAP) -> Estimate:
    """Estimate the gain as a ratio of totals, with its standard error from the spread of pairs within strata.

    Args:
        table: at least two complete blocks.
        cap: times the block's median of seconds per work, beyond which a slice's time is cut; inf: never.

    Raises:
        ValueError: fewer than two blocks, or times or work that are not finite numbers above zero.
    """
    if table.blocks < 2:
        raise ValueError(f"{table.blocks} block has no spread: an estimate needs two")
    if not table.measurable:
        raise ValueError("times and work of slices must be finite numbers above zero")
    limited, capped_candidate, capped_control = table.capped(cap)
    influence = pair_influence(limited)
    first = table.candidate_first
    n, strata = table.blocks, table.strata
    se = _standard_error(_centred(influence, -2), _centred(first, -2), strata * (n - 1) - 1)
    if n <= FEW_BLOCKS:
        # With two values a stratum, one stratum that is always noisy makes Student's t a Cauchy variable.
        se = np.maximum(se, _standard_error(_centred(influence, (-2, -1)), _centred(first, (-2, -1)), strata * n - 2))
    return Estimate(
        blocks=n,
        strata=strata,
        log_gain=log_ratio_of_rates(limited),
        se=se,
        effective_strata=_effective_strata(limited),
        capped_candidate=capped_candidate,
        capped_control=capped_control,
        constant=np.asarray(np.ptp(influence, axis=(-2, -1)) == 0),
    )


def log_ratio_of_rates(table: SliceTable) -> Floats:
    """ln(control's seconds per work ÷ candidate's), sums over all slices; float64[...]."""
    candidate_s, control_s, candidate_work, control_work = (a.sum(axis=(-2, -1)) for a in table.arrays[:4])
    return np.asarray(np.log(control_s / control_work) - np.log(candidate_s / candidate_work))


def pair_influence(table: SliceTable) -> Floats:
    """What each pair adds to the log ratio of rates beside the mean: float64[..., blocks, strata].

    The work in it cancels over a complete block, so it moves no estimate; it takes the noise of unequal lengths out.
    """

    def deviation(seconds: Floats, work: Floats) -> Floats:
        total, mean = (f(seconds, axis=(-2, -1), keepdims=True) for f in (np.sum, np.mean))
        rate = total / work.sum(axis=(-2, -1), keepdims=True)
        return np.asarray((seconds - rate * work) / mean)

    return deviation(table.control_s, table.control_work) - deviation(table.candidate_s, table.candidate_work)


def degrees_of_freedom(blocks: int, strata: int, effective_strata: Floats) -> Floats:
    """Of an estimate after so many blocks, between blocks − 1 and strata·(blocks − 1) − 1.

    From durations and not from residuals (Satterthwaite): a single burst would leave two or three degrees of freedom.
    """
    degrees = (blocks - 1) * effective_strata - 1
    return np.asarray(np.clip(degrees, blocks - 1, max(blocks - 1, strata * (blocks - 1) - 1)))


def t_upper(level: float, degrees: Floats) -> Floats:
    """Quantile of Student's t that is exceeded with probability `level`; float64[...] as `degrees`."""
    from scipy import special

    return np.asarray(-special.stdtrit(degrees, level))


def _effective_strata(table: SliceTable) -> Floats:
    """(Σw)²/Σw² with w from the strata's mean durations."""
    shares = [s.mean(axis=-2) / s.mean(axis=(-2, -1))[..., None] for s in (table.candidate_s, table.control_s)]
    weights = shares[0] ** 2 + shares[1] ** 2
    return np.asarray(weights.sum(axis=-1) ** 2 / (weights**2).sum(axis=-1))


def _centred(values: Floats, axis: int | tuple[int, int]) -> Floats:
    return np.asarray(values - values.mean(axis=axis, keepdims=True))


def _standard_error(residual: Floats, first: Floats, degrees: int) -> Floats:
    """Of the mean over pairs, with the effect of going first regressed out of the residuals."""
    axes = (-2, -1)
    square = (first**2).sum(axis=axes, keepdims=True)
    slope = (residual * first).sum(axis=axes, keepdims=True) / np.where(square > 0, square, 1.0)
    rest = residual - slope * first
    pairs = residual.shape[-2] * residual.shape[-1]
    return np.asarray(np.sqrt((rest**2).sum(axis=axes) / degrees / pairs))
