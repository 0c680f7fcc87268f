"""Whole trials of slices, simulated many at once, and how they end under the rule or a mutant of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from orderproof.measure.estimator import Estimate, SliceTable, estimate
from orderproof.measure.verdict import STALLS_LIMIT, Rule
from tests.support.slice_noise import (
    Floats,
    Noise,
    autoregressive,
    bursts,
    drift,
    outliers,
    real,
    stalls,
    step,
    warm_up,
    white,
)

ONCE_IN_10_000 = 1e-4
BLOCKS = 12
SEED = 20261130
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Scenario:
    """A machine and a job."""

    noise: Noise
    strata: int = 12
    gains_sd: float = 0.0  # of log gains between strata
    lengths_sd: float = 0.0  # of log work between strata
    content_sd: float = 0.0  # of work between the control's slices
    stratum_noise: tuple[float, float] | None = None  # extra white sd of a slice in the first and in the last stratum
    noisy_stratum: float = 0.0  # extra white sd of a slice in the first stratum alone
    long_stratum: float = 1.0  # work of the first stratum, of the others' work
    second_costs: float = 0.0  # share that the second slice of a pair takes longer
    coin: str = "balanced"  # balanced | free | none: the control first in every pair


SCENARIOS = {
    "white .06": Scenario(white(0.06)),
    "drift .5 %": Scenario(drift(0.005)),
    "AR .5": Scenario(autoregressive(0.5)),
    "AR .8": Scenario(autoregressive(0.8)),
    "AR .95": Scenario(autoregressive(0.95)),
    "AR .99 sd .3": Scenario(autoregressive(0.99, 0.3)),
    "step": Scenario(step),
    "warm-up": Scenario(warm_up),
    "bursts": Scenario(bursts),
    "outliers": Scenario(outliers),
    "stalls": Scenario(stalls),
    "strata gains and bursts": Scenario(bursts, gains_sd=0.12),
    "lengths": Scenario(autoregressive(0.8), lengths_sd=0.6, content_sd=0.16),
    "order effect": Scenario(white(0.03), second_costs=0.03),
    "noise by stratum": Scenario(white(0.03), stratum_noise=(0.03, 0.15)),
    "a stratum 5 times noisier": Scenario(white(0.03), noisy_stratum=0.15),
    "a stratum 10 times longer": Scenario(autoregressive(0.5), long_stratum=10.0, content_sd=0.05),
    "real m128": Scenario(real("m128")),
    "real m64": Scenario(real("m64")),
    "real m32": Scenario(real("m32"), strata=24),
}
STEADY = ("drift .5 %", "step", "warm-up")  # in these the balanced coin takes nearly all out
KNOWN_LIMIT = Scenario(white(0.03), strata=10, noisy_stratum=0.3)


def trials_of(
    scenario: Scenario, gain: float, trials: int, *, blocks: int = BLOCKS, seed: int = 20261130
) -> SliceTable:
    """float64[trials, blocks, strata]; the true gain is a ratio of totals."""
    rng = np.random.default_rng(seed)
    strata = scenario.strata
    shape = (trials, blocks, strata)
    slowness = scenario.noise(rng, trials, blocks * strata * 2).reshape(trials, blocks, strata, 2)
    slowness = slowness + scenario.second_costs * np.arange(2)
    first = _coins(rng, scenario.coin, shape)
    slots = np.argsort(rng.random(shape), axis=-1)  # the slot of each stratum
    slowness = np.take_along_axis(slowness, slots[..., None], axis=2)
    candidate, control = (np.where(first == sign, slowness[..., 0], slowness[..., 1]) for sign in (1, -1))
    candidate, control = (arm + rng.normal(0, 1, shape) * _extra_sd(scenario) for arm in (candidate, control))
    work = np.exp(rng.normal(0, scenario.lengths_sd, (trials, 1, strata)))
    work[..., 0] *= scenario.long_stratum
    work = np.broadcast_to(work, shape)
    content = np.maximum(0.2, 1 + scenario.content_sd * rng.normal(0, 1, shape))
    control_work = content * work.sum(axis=-1, keepdims=True) / content.sum(axis=-1, keepdims=True)
    gains = rng.normal(0, scenario.gains_sd, (trials, 1, strata))
    total = (work * np.exp(-gains)).sum(axis=-1, keepdims=True) / work.sum(axis=-1, keepdims=True)
    candidate_s = work * np.exp(candidate - gains) / total / (1 + gain)
    return SliceTable(candidate_s, control_work * np.exp(control), work, control_work, first)


def _extra_sd(scenario: Scenario) -> Floats:
    sd = np.zeros(scenario.strata)
    if scenario.stratum_noise:
        sd += np.linspace(*scenario.stratum_noise, scenario.strata)
    sd[0] += scenario.noisy_stratum
    return sd


def _coins(rng: np.random.Generator, coin: str, shape: tuple[int, int, int]) -> Floats:
    if coin == "none":
        return np.full(shape, -1.0)
    if coin == "free":
        return 2.0 * rng.integers(0, 2, shape) - 1
    balanced = np.where(np.arange(shape[-1]) < shape[-1] // 2, 1.0, -1.0)
    coins = np.broadcast_to(balanced, shape).copy()
    if shape[-1] % 2:
        coins[..., -1] = 2.0 * rng.integers(0, 2, shape[:-1]) - 1
    return rng.permuted(coins, axis=-1)


@dataclass(frozen=True)
class Bounds:
    """Of log_gain at one look; float64[trials]."""

    low: Floats
    high: Floats
    upper: Floats  # at the level of `keep`
    stalled: Bools  # the stalls come with the candidate


Analysis = Callable[[SliceTable, int, Rule], Bounds]  # table so far, number of the look from 0, rule


def by_the_rule(table: SliceTable, look: int, rule: Rule) -> Bounds:
    return bounds_of(estimate(table), rule.promote_levels[look], rule.keep_levels[look])


def bounds_of(seen: Estimate, level: float, keep_level: float) -> Bounds:
    capped = seen.capped_candidate + seen.capped_control
    stalled = stats.binom.sf(seen.capped_candidate - 1, capped, 0.5) <= STALLS_LIMIT
    return Bounds(seen.low(level), seen.high(level), seen.high(keep_level), np.asarray(stalled))


@dataclass(frozen=True)
class Ends:
    """Arrays over the trials."""

    promoted: Bools
    kept: Bools
    blocks: NDArray[np.int64]
    low: Floats  # of log_gain, where the trial ended
    high: Floats

    def missed(self, gain: float) -> Bools:
        """The interval does not hold the true gain."""
        return np.asarray((self.low > math.log1p(gain)) | (self.high < math.log1p(gain)))


def run_to_the_end(table: SliceTable, rule: Rule | None = None, analysis: Analysis = by_the_rule) -> Ends:
    """Judge every trial at every look until a verdict holds."""
    rule = rule or Rule()
    trials = len(table.candidate_s)
    ends = Ends(*(np.zeros(trials, kind) for kind in (bool, bool, np.int64, float, float)))
    running = np.arange(trials)
    for look, blocks in enumerate(rule.looks):
        bounds = analysis(SliceTable(*(array[running, :blocks] for array in table.arrays)), look, rule)
        promoted = (bounds.low > math.log1p(rule.margin)) & ~bounds.stalled
        kept = ~promoted & (bounds.upper < math.log1p(rule.min_effect))
        ends.promoted[running], ends.kept[running], ends.blocks[running] = promoted, kept, blocks
        ends.low[running], ends.high[running] = bounds.low, bounds.high
        running = running[~(promoted | kept)]
        if not len(running):
            break
    return ends


def simulate(
    scenario: Scenario, gain: float, trials: int, *, rule: Rule | None = None, analysis: Analysis = by_the_rule
) -> Ends:
    rule = rule or Rule()
    table = trials_of(scenario, gain, trials, blocks=rule.looks[-1])
    return run_to_the_end(table, rule, analysis)


def within(cases: Bools, limit: float) -> bool:
    """Whether so many cases are compatible with a true share of at most `limit`, judged once in 10,000 wrongly."""
    return float(stats.binom.sf(cases.sum() - 1, len(cases), limit)) > ONCE_IN_10_000


def at_least(cases: Bools, share: float) -> bool:
    """Whether so many cases are compatible with a true share of at least `share`, likewise."""
    return within(~cases, 1 - share)


def changed(scenario: Scenario, **fields: object) -> Scenario:
    return replace(scenario, **fields)  # type: ignore[arg-type]
