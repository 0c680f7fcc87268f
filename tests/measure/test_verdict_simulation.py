"""The whole rule, simulated: how often it promotes what it should not, and what it should.

Every share is held against its limit by a binomial test that errs once in 10,000. Seeds are fixed: a failure is a
change of the rule, not bad luck. The short run has fewer trials and so wider bounds; the long one has 10,000.
"""

from __future__ import annotations

import numpy as np
import pytest

from orderproof.measure.estimator import SliceTable, estimate
from orderproof.measure.verdict import Rule
from tests.support import slice_mutants as mutants
from tests.support.slice_noise import autoregressive, drift, white
from tests.support.slice_trials import (
    KNOWN_LIMIT,
    SCENARIOS,
    STEADY,
    Analysis,
    Scenario,
    at_least,
    by_the_rule,
    changed,
    run_to_the_end,
    simulate,
    trials_of,
    within,
)

MARGIN, MIN_EFFECT = 0.01, 0.03
TRIALS = [1500, pytest.param(10_000, marks=pytest.mark.long)]
MUTANT_TRIALS = 4000


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_false_promotions_at_the_margin_and_missed_gains_are_rare(name: str, trials: int) -> None:
    ends = simulate(SCENARIOS[name], MARGIN, trials)
    assert within(ends.promoted, 0.02 if name in STEADY else 0.03)
    assert within(ends.missed(MARGIN), 0.05)


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_gain_is_hardly_ever_promoted(name: str, trials: int) -> None:
    ends = simulate(SCENARIOS[name], 0.0, trials)
    assert within(ends.promoted, 0.015)
    assert within(ends.missed(0.0), 0.05)


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_minimum_effect_is_rarely_kept_out_and_intervals_hold_it(name: str, trials: int) -> None:
    ends = simulate(SCENARIOS[name], MIN_EFFECT, trials)
    assert within(ends.kept, 0.052)
    assert within(ends.missed(MIN_EFFECT), 0.05)


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_intervals_hold_a_large_gain(name: str, trials: int) -> None:
    assert within(simulate(SCENARIOS[name], 0.2, trials).missed(0.2), 0.05)


@pytest.mark.parametrize("trials", TRIALS)
def test_a_stratum_ten_times_noisier_than_all_others_is_the_known_limit(trials: int) -> None:
    assert within(simulate(KNOWN_LIMIT, MARGIN, trials).promoted, 0.05)


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize(("name", "power"), [("real m128", 0.85), ("real m64", 0.85), ("real m32", 0.55)])
def test_gains_are_found_in_the_noise_of_a_real_machine(name: str, power: float, trials: int) -> None:
    assert at_least(simulate(SCENARIOS[name], 0.05, trials).promoted, power)
    assert at_least(simulate(SCENARIOS[name], 0.1, trials).promoted, 0.98)
    large = simulate(SCENARIOS[name], 0.2, trials)
    assert at_least(large.promoted, 0.995)
    assert large.blocks.mean() <= 3.2


# -- mutants: each exceeds the bound that the rule keeps ---------------------------------------------------------------

TOO_OFTEN: dict[str, tuple[Scenario, Analysis, Rule]] = {
    "the control first in every pair": (Scenario(drift(-0.01), coin="none"), by_the_rule, Rule()),
    "mean log ratio": (Scenario(white(0.03), gains_sd=0.15), mutants.mean_log_ratio, Rule()),
    "mean of ratios": (Scenario(white(0.25)), mutants.mean_of_ratios, Rule()),
    "all of alpha at every look": (SCENARIOS["white .06"], mutants.all_of_alpha_at_every_look, Rule()),
    "a look after every block": (
        SCENARIOS["white .06"],
        mutants.all_of_alpha_at_every_look,
        Rule(looks=tuple(range(2, 13))),
    ),
    "normal quantiles": (
        Scenario(white(0.06), strata=6, long_stratum=20.0),
        mutants.normal_in_place_of_t,
        Rule(),
    ),
    "degrees from pairs": (Scenario(white(0.06), long_stratum=20.0), mutants.degrees_from_pairs, Rule()),
    "cap of the candidate alone": (SCENARIOS["outliers"], mutants.cap_of_the_candidate_alone, Rule()),
    "windows as pairs": (SCENARIOS["AR .5"], mutants.windows_as_pairs, Rule()),
}


@pytest.mark.parametrize("mutant", TOO_OFTEN)
def test_a_wrong_method_promotes_too_often(mutant: str) -> None:
    scenario, analysis, rule = TOO_OFTEN[mutant]
    assert not within(simulate(scenario, MARGIN, MUTANT_TRIALS, rule=rule, analysis=analysis).promoted, 0.03)
    if scenario.coin == "none":
        scenario = changed(scenario, coin="balanced")
    assert within(simulate(scenario, MARGIN, MUTANT_TRIALS).promoted, 0.03), "the rule itself keeps the bound there"


def test_repeating_pairs_because_the_candidate_was_slow_promotes_too_often() -> None:
    first, spare = (trials_of(SCENARIOS["AR .8"], MARGIN, MUTANT_TRIALS, seed=seed) for seed in (1, 2))
    repeated = mutants.repeated_where_the_candidate_was_slow(first, spare)
    assert not within(run_to_the_end(repeated).promoted, 0.03)
    assert within(run_to_the_end(first).promoted, 0.03)


TOO_SELDOM: dict[str, tuple[Scenario, float, Analysis]] = {
    "no strata": (Scenario(autoregressive(0.8), gains_sd=0.12), 0.05, mutants.without_strata),
    "no work": (SCENARIOS["lengths"], 0.05, mutants.without_work),
    "no cap": (SCENARIOS["stalls"], 0.05, mutants.without_cap),
}


@pytest.mark.parametrize("mutant", TOO_SELDOM)
def test_a_blunter_method_finds_fewer_gains(mutant: str) -> None:
    scenario, gain, analysis = TOO_SELDOM[mutant]
    blunt = simulate(scenario, gain, MUTANT_TRIALS, analysis=analysis).promoted.mean()
    assert simulate(scenario, gain, MUTANT_TRIALS).promoted.mean() > blunt + 0.05


def test_a_free_coin_finds_fewer_gains_where_going_second_costs() -> None:
    scenario = changed(SCENARIOS["order effect"], noise=white(0.02))
    free = simulate(changed(scenario, coin="free"), MIN_EFFECT, MUTANT_TRIALS).promoted.mean()
    assert simulate(scenario, MIN_EFFECT, MUTANT_TRIALS).promoted.mean() > free + 0.02


# -- an oracle ---------------------------------------------------------------------------------------------------------


def test_the_rule_rejects_as_often_as_a_sign_flip_test_where_that_is_exact() -> None:
    """A constant gain in every pair, equal work, one look: given the machine, only the coins are random."""
    trials, flips, level = 3000, 2000, 0.025
    tables = trials_of(SCENARIOS["AR .8"], MARGIN, trials)
    rejected = estimate(tables).low(level) > np.log1p(MARGIN)
    shifted = (1 + MARGIN) * tables.candidate_s
    values = ((tables.control_s - shifted) / (tables.control_s + shifted)).reshape(trials, -1)
    signs = np.random.default_rng(11).choice([-1.0, 1.0], (values.shape[1], flips))
    p = (1 + (values @ signs >= values.sum(axis=1, keepdims=True)).sum(axis=1)) / (1 + flips)
    exact = p <= level
    assert abs(rejected.mean() - exact.mean()) <= 0.01
    assert (rejected != exact).mean() <= 0.015


def test_small_slices_find_what_large_ones_miss() -> None:
    """The same prompts and the same time in 24 pairs a block or in 6."""
    few = simulate(changed(SCENARIOS["bursts"], strata=6), 0.05, 1000).promoted.mean()
    assert simulate(changed(SCENARIOS["bursts"], strata=24), 0.05, 1000).promoted.mean() > few + 0.2


def test_the_table_of_a_simulated_trial_holds_equal_work_in_both_arms() -> None:
    table: SliceTable = trials_of(SCENARIOS["lengths"], 0.0, 3)
    assert table.candidate_work.sum(axis=-1) == pytest.approx(table.control_work.sum(axis=-1))
