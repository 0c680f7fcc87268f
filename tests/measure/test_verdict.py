"""The rule: which verdict follows from which numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from orderproof.measure.estimator import SliceTable, estimate
from orderproof.measure.verdict import (
    EXIT_CODES,
    Evidence,
    Noise,
    Rule,
    Verdict,
    detectable_gain,
    noise_between,
    reach_verdict,
    refused,
    stalls_p,
)
from orderproof.outputs.output_change import OutputChange, ScoreChange
from tests.support.output_change import output_change
from tests.support.slice_trials import SCENARIOS, run_to_the_end, trials_of

UNCHANGED = output_change()
UNDECIDED = output_change(answer="undecided", low=-0.02, high=0.03, excess=0.005)
MORE = output_change(answer="more_than_reshuffling", low=0.03, high=0.05, excess=0.04)


def evidence(
    gain: float, blocks: int = 2, *, strata: int = 12, noise: float = 0.02, seed: int = 0, **fields: Any
) -> Evidence:
    rng = np.random.default_rng(seed)
    shape = (blocks, strata)
    seconds = (np.exp(rng.normal(0, noise, shape)) / (1 + gain), np.exp(rng.normal(0, noise, shape)))
    table = SliceTable(*seconds, np.ones(shape), np.ones(shape), rng.choice([-1.0, 1.0], shape))
    return Evidence(table, **fields)


def tokens(ratio: float, blocks: int, strata: int = 12, noise: float = 0.0) -> SliceTable:
    """Output tokens of slices: the candidate's are `ratio` of the control's."""
    rng = np.random.default_rng(9)
    shape = (blocks, strata)
    counts = 640 * np.exp(rng.normal(0, noise, shape))
    return SliceTable(ratio * counts, counts, np.full(shape, 32.0), np.full(shape, 32.0), np.ones(shape))


def verdict_of(found: Evidence | None, outputs: OutputChange | None = UNCHANGED, **fields: Any) -> str | None:
    rule = fields.pop("rule", Rule())
    verdict = reach_verdict(found, rule, outputs, **fields)
    return verdict.verdict if verdict else None


# -- each verdict ------------------------------------------------------------------------------------------------------


def test_a_sure_gain_is_promoted_at_the_first_look() -> None:
    verdict = reach_verdict(evidence(0.2), Rule(), UNCHANGED)
    assert verdict
    assert (verdict.verdict, verdict.exit_code, verdict.look, verdict.blocks) == ("promote", 0, 1, 2)
    assert verdict.gain_low is not None
    assert verdict.gain_high is not None
    assert 0.01 < verdict.gain_low < 0.2 < verdict.gain_high


def test_a_gain_surely_below_the_minimum_effect_keeps_the_current_order() -> None:
    verdict = reach_verdict(evidence(-0.05), Rule(), UNCHANGED)
    assert verdict
    assert (verdict.verdict, verdict.exit_code) == ("keep", 10)
    assert verdict.gain_upper is not None
    assert verdict.gain_upper < 0.03


def test_between_the_two_the_trial_goes_on_until_its_last_look() -> None:
    assert verdict_of(evidence(0.02)) is None
    last = reach_verdict(evidence(0.02, blocks=12, noise=0.1, seed=3), Rule(), UNCHANGED)
    assert last
    assert (last.verdict, last.exit_code, last.look) == ("inconclusive", 11, 5)
    assert last.detectable_gain is not None
    assert f"{100 * last.detectable_gain:+.1f} %" in last.reason
    assert "24" in last.reason


@pytest.mark.parametrize("blocks", [1, 4, 6, 7, 9, 11])
def test_nothing_is_judged_between_looks(blocks: int) -> None:
    assert verdict_of(evidence(0.5, blocks)) is None


def test_a_refusal_has_its_own_code() -> None:
    verdict = refused("the model is dense")
    assert (verdict.verdict, verdict.exit_code, verdict.blocks) == ("refused", 12, 0)


def test_exit_codes_are_the_documented_ones() -> None:
    assert EXIT_CODES == {"promote": 0, "keep": 10, "inconclusive": 11, "refused": 12, "invalid": 13}


# -- invalid -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, -1.0])
def test_impossible_times_are_invalid(bad: float) -> None:
    found = evidence(0.2)
    found.table.candidate_s[0, 0] = bad
    verdict = reach_verdict(found, Rule(), UNCHANGED)
    assert verdict
    assert (verdict.verdict, verdict.exit_code) == ("invalid", 13)


def test_pairs_that_are_all_equal_are_no_clock() -> None:
    same = np.ones((2, 12))
    assert verdict_of(Evidence(SliceTable(same, same, same, same, same))) == "invalid"


def test_a_reason_from_outside_is_invalid_at_any_number_of_blocks() -> None:
    assert verdict_of(None, invalid="2 requests kept failing") == "invalid"
    assert verdict_of(evidence(0.2, 4), invalid="2 requests kept failing") == "invalid"


def test_more_blocks_than_planned_are_invalid() -> None:
    assert verdict_of(evidence(0.2, 13)) == "invalid"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_noisy_machine_is_never_invalid(name: str) -> None:
    tables = trials_of(SCENARIOS[name], 0.02, 20)
    for trial in range(20):
        table = SliceTable(*(array[trial] for array in tables.arrays))
        for look in Rule().looks:
            assert verdict_of(Evidence(table.until(look))) != "invalid"


# -- outputs -----------------------------------------------------------------------------------------------------------


def test_outputs_that_changed_more_than_reshuffling_keep_the_current_order() -> None:
    assert verdict_of(evidence(0.5), MORE) == "keep"


def test_undecided_outputs_are_enough_for_not_worse_and_not_for_proven() -> None:
    assert verdict_of(evidence(0.2), UNDECIDED) == "promote"
    assert verdict_of(evidence(0.2), UNDECIDED, rule=Rule(outputs="proven")) is None
    assert verdict_of(evidence(0.2, 12), UNDECIDED, rule=Rule(outputs="proven")) == "inconclusive"


def test_the_verdict_on_speed_stands_while_the_outputs_are_waited_for() -> None:
    """A later look is for the outputs alone: what was fast enough once stays so."""
    first, rest = evidence(0.2, 2).table, evidence(-0.02, 3, noise=0.3, seed=4).table
    table = SliceTable(*(np.concatenate(both) for both in zip(first.arrays, rest.arrays, strict=True)))
    rule = Rule(outputs="proven")
    assert estimate(table).low(rule.promote_levels[2]) < np.log1p(rule.margin)
    assert verdict_of(Evidence(table), UNCHANGED, rule=rule) == "promote"


def test_outputs_never_compared_promote_nothing() -> None:
    assert verdict_of(evidence(0.2), None) is None
    assert verdict_of(evidence(0.2, 12), None) == "inconclusive"


@pytest.mark.parametrize(
    ("difference", "low", "verdict"), [(-0.05, -0.06, "keep"), (-0.005, -0.03, None), (0.0, -0.005, "promote")]
)
def test_scores_decide_where_agreement_is_chance(difference: float, low: float, verdict: str | None) -> None:
    scores = ScoreChange(
        prompts=100, control=0.8, candidate=0.8 + difference, difference=difference, low=low, passed=low > -0.01
    )
    change = output_change(vacuous=True, answer="undecided", scores=scores)
    assert verdict_of(evidence(0.2), change) == verdict


# -- lengths, stalls, mixing -------------------------------------------------------------------------------------------


def test_an_order_that_changes_the_output_lengths_is_not_promoted() -> None:
    shorter = evidence(0.2, 3, tokens=tokens(0.9, 3))
    verdict = reach_verdict(shorter, Rule(), UNCHANGED)
    assert verdict
    assert verdict.verdict == "inconclusive"
    assert verdict.length_log_ratio == pytest.approx(-np.log(0.9))
    assert verdict_of(evidence(0.2, 3, tokens=tokens(1.0, 3, noise=0.1))) == "promote"


def test_stalls_that_come_with_the_candidate_withhold_the_promotion() -> None:
    found = evidence(0.5, 3)
    found.table.candidate_s[:2, 0] *= 40
    found.table.candidate_s[2, 1:4] *= 40
    other = evidence(0.5, 3)
    other.table.control_s[:2, 0] *= 40
    other.table.control_s[2, 1:4] *= 40
    rule = Rule(margin=0.0)
    assert estimate(found.table).log_gain > 0
    assert verdict_of(found, rule=rule) is None
    assert verdict_of(other, rule=rule) == "promote"
    last = evidence(1.0, 12)
    last.table.candidate_s[:6, 0] *= 40
    verdict = reach_verdict(last, Rule(), UNCHANGED)
    assert verdict
    assert (verdict.verdict, verdict.capped_candidate, verdict.capped_control) == ("inconclusive", 6, 0)
    assert verdict.gain_low is not None
    assert verdict.gain_low > 0.01


@pytest.mark.parametrize(("candidate", "control", "p"), [(0, 5, 1.0), (1, 0, 0.5), (5, 0, 0.03125), (4, 1, 0.1875)])
def test_stalls_are_compared_by_a_sign_test(candidate: int, control: int, p: float) -> None:
    assert stalls_p(candidate, control) == pytest.approx(p)


def test_mixing_widens_what_keeps_and_never_promotes() -> None:
    found = evidence(0.0, 12, noise=0.06, seed=3)
    clean, mixed = (reach_verdict(replace(found, foreign=foreign), Rule(), UNCHANGED) for foreign in (0.0, 0.5))
    assert clean
    assert mixed
    assert clean.verdict == "keep"
    assert clean.gain_upper is not None
    assert mixed.gain_upper == pytest.approx((1 + clean.gain_upper) ** 2 - 1)
    assert mixed.gain_low == clean.gain_low
    assert (mixed.own_share, clean.own_share) == (0.5, 1.0)


def test_a_gain_that_the_prefix_cache_makes_alone_is_named() -> None:
    plain, cached = (
        reach_verdict(replace(evidence(0.2), prefix_gain=share), Rule(), UNCHANGED) for share in (0.005, 0.08)
    )
    assert plain
    assert cached
    assert (plain.verdict, cached.verdict) == ("promote", "promote")
    assert "another order" not in plain.reason
    assert "+8.0 %" in cached.reason
    assert "another order" in cached.reason


# -- time, noise, records ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [0, 1, 2, 4])
def test_the_end_of_the_budget_is_inconclusive_where_nothing_is_sure(blocks: int) -> None:
    found = evidence(0.02, blocks, noise=0.08) if blocks else None
    assert verdict_of(found, out_of_time=True) == "inconclusive"


def test_the_end_of_the_budget_between_looks_promotes_nothing() -> None:
    assert verdict_of(evidence(0.5, 4), out_of_time=True) == "inconclusive"
    assert verdict_of(evidence(0.5, 5), out_of_time=True) == "promote"


def test_the_detectable_gain_is_what_the_last_look_sees_with_80_percent_power() -> None:
    rule = Rule(looks=(12,))
    scenario = SCENARIOS["AR .8"]
    seen = estimate(trials_of(scenario, 0.0, 200))
    noise = float(np.median(seen.se)) * np.sqrt(12)
    gain = detectable_gain(noise, 12, float(np.median(seen.effective_strata)), rule)
    power = run_to_the_end(trials_of(scenario, gain, 2000), rule).promoted.mean()
    assert power == pytest.approx(0.8, abs=0.05)


def test_more_blocks_detect_smaller_gains() -> None:
    assert detectable_gain(0.1, 12, 11.0, Rule(), 24) < detectable_gain(0.1, 12, 11.0, Rule())


def test_noise_between_two_halves_holds_zero() -> None:
    noise = noise_between(evidence(0.0, 3).table, Rule())
    assert noise.gain_low < 0 < noise.gain_high


def test_a_verdict_survives_its_record() -> None:
    noise = Noise(gain=0.01, gain_low=-0.02, gain_high=0.04)
    found = evidence(0.2, 3, tokens=tokens(1.0, 3, noise=0.1), foreign=0.1)
    verdict = reach_verdict(found, Rule(), UNCHANGED, noise=noise)
    assert verdict
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict
    assert verdict == reach_verdict(found, Rule(), UNCHANGED, noise=noise)


@pytest.mark.parametrize("looks", [(), (1, 2), (3, 3), (5, 4)])
def test_looks_must_increase_from_two(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError):
        Rule(looks=looks)


@pytest.mark.parametrize("gain", [0.0, 0.02, 0.05, 0.2])
def test_decide_ends_trials_as_the_simulation_does(gain: float) -> None:
    tables = trials_of(SCENARIOS["bursts"], gain, 30)
    ends = run_to_the_end(tables)
    for trial in range(30):
        table = SliceTable(*(array[trial] for array in tables.arrays))
        verdicts = (reach_verdict(Evidence(table.until(look)), Rule(), UNCHANGED) for look in Rule().looks)
        verdict = next(found for found in verdicts if found)
        name = "promote" if ends.promoted[trial] else "keep" if ends.kept[trial] else "inconclusive"
        assert (verdict.verdict, verdict.blocks) == (name, ends.blocks[trial])
