"""Wrong ways to analyse slices, each of which a test must catch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy import stats

from orderproof.measure import estimator
from orderproof.measure.estimator import Estimate, SliceTable, estimate
from orderproof.measure.verdict import Rule
from tests.support.slice_noise import Floats
from tests.support.slice_trials import Bounds, bounds_of, by_the_rule

WINDOWS = 4


def mean_log_ratio(table: SliceTable, look: int, rule: Rule) -> Bounds:
    """The mean over pairs of log ratios in place of the ratio of totals."""
    ratios = np.log(table.control_s / table.control_work) - np.log(table.candidate_s / table.candidate_work)
    return _bounds_of_pairs(ratios, table, look, rule)


def mean_of_ratios(table: SliceTable, look: int, rule: Rule) -> Bounds:
    """The mean over pairs of ratios."""
    ratios = (table.control_s / table.control_work) / (table.candidate_s / table.candidate_work)
    mean = ratios.mean(axis=(-2, -1), keepdims=True)
    return _bounds_of_pairs(np.log(mean) + ratios / mean - 1, table, look, rule)


def _bounds_of_pairs(values: Floats, table: SliceTable, look: int, rule: Rule) -> Bounds:
    degrees = table.strata * (table.blocks - 1)
    residual = values - values.mean(axis=-2, keepdims=True)
    se = np.sqrt((residual**2).sum(axis=(-2, -1)) / degrees / (table.strata * table.blocks))
    mean = values.mean(axis=(-2, -1))
    reach, keep = (stats.t.isf(levels[look], degrees) * se for levels in (rule.promote_levels, rule.keep_levels))
    return Bounds(mean - reach, mean + reach, mean + keep, np.zeros(len(mean), bool))


def all_of_alpha_at_every_look(table: SliceTable, look: int, rule: Rule) -> Bounds:
    return bounds_of(estimate(table), rule.alpha, rule.keep_alpha)


def normal_in_place_of_t(table: SliceTable, look: int, rule: Rule) -> Bounds:
    seen = estimate(table)
    reach, keep = (stats.norm.isf(levels[look]) * seen.se for levels in (rule.promote_levels, rule.keep_levels))
    bounds = by_the_rule(table, look, rule)
    return Bounds(seen.log_gain - reach, seen.log_gain + reach, seen.log_gain + keep, bounds.stalled)


def degrees_from_pairs(table: SliceTable, look: int, rule: Rule) -> Bounds:
    """As many degrees of freedom as pairs, however long the strata are."""
    seen = estimate(table)
    equal = replace(seen, effective_strata=np.full_like(seen.effective_strata, float(table.strata)))
    return bounds_of(equal, rule.promote_levels[look], rule.keep_levels[look])


def cap_of_the_candidate_alone(table: SliceTable, look: int, rule: Rule) -> Bounds:
    rates = table.candidate_s / table.candidate_work
    cap = 1.5 * np.median(rates, axis=-1, keepdims=True)
    limited = replace(table, candidate_s=np.minimum(table.candidate_s, cap * table.candidate_work))
    return by_the_rule(limited, look, rule)


def windows_as_pairs(table: SliceTable, look: int, rule: Rule) -> Bounds:
    """Each slice cut into windows that count as slices of their own: the noise of a slice is in all of them."""
    rng = np.random.default_rng(3)
    arrays = []
    for array, noisy in zip(table.arrays, (True, True, False, False, False), strict=True):
        parts = np.repeat(array, WINDOWS, axis=-1)
        arrays.append(parts * np.exp(rng.normal(0, 0.03, parts.shape)) if noisy else parts)
    return by_the_rule(SliceTable(*arrays), look, rule)


def without_strata(table: SliceTable, look: int, rule: Rule) -> Bounds:
    """The spread over all pairs, differences between strata included."""
    return bounds_of(_plain(table), rule.promote_levels[look], rule.keep_levels[look])


def _plain(table: SliceTable) -> Estimate:
    seen = estimate(table)
    axes = (-2, -1)
    influence = estimator.pair_influence(table.capped()[0])
    spread = influence.var(axis=axes, ddof=2)
    return replace(seen, se=np.sqrt(spread / (table.blocks * table.strata)))


def without_work(table: SliceTable, look: int, rule: Rule) -> Bounds:
    """Seconds alone, whatever a slice had to do."""
    same = np.ones_like(table.control_work)
    return by_the_rule(replace(table, candidate_work=same, control_work=same), look, rule)


def without_cap(table: SliceTable, look: int, rule: Rule) -> Bounds:
    return bounds_of(estimate(table, cap=math.inf), rule.promote_levels[look], rule.keep_levels[look])


def repeated_where_the_candidate_was_slow(table: SliceTable, spare: SliceTable, limit: float = 1.2) -> SliceTable:
    """Pairs whose candidate took `limit` times the control's time are taken from another trial."""
    slow = table.candidate_s / table.candidate_work > limit * table.control_s / table.control_work
    pairs = zip(table.arrays, spare.arrays, strict=True)
    return SliceTable(*(np.where(slow, again, array) for array, again in pairs))
