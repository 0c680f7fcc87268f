"""Claims about single verdicts. How often they are right is in test_verdict_simulation.py."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from orderproof.measure.verdict import EXIT_CODES, Rule, Verdict, decide, detectable_gain, refused, t_critical
from orderproof.outputs.output_change import OutputChange, ScoreChange

SHORT = Rule()
LONG = Rule(looks=(10, 20, 40))
PROVEN = Rule(outputs="proven")

FASTER = [0.17, 0.20, 0.18, 0.21, 0.19]  # log ratios: a gain near 21 %
NO_GAIN = [0.004, -0.006, 0.002, -0.003, 0.001]
UNCLEAR = [0.06, -0.02, 0.05, -0.01, 0.04, 0.07, -0.03, 0.02, 0.06, 0.0]  # a gain near 2.4 %, noise of 3.7 %


def outputs(
    answer: str = "as_reshuffling", *, vacuous: bool = False, scores: ScoreChange | None = None
) -> OutputChange:
    excess, low, high = {
        "as_reshuffling": (0.002, -0.003, 0.007),
        "undecided": (0.004, -0.004, 0.012),
        "more_than_reshuffling": (0.05, 0.04, 0.06),
    }[answer]
    return OutputChange.model_validate(
        {
            "prompts": 768,
            "control_passes": 5,
            "candidate_passes": 5,
            "d_aa": 0.09,
            "d_ab": 0.09 + excess,
            "d_bb": 0.09,
            "excess": excess,
            "se": (high - low) / 3.29,
            "se_prompts": 0.002,
            "se_passes": 0.001,
            "low": low,
            "high": high,
            "answer": answer,
            "first_divergence": {},
            "vacuous": vacuous,
            "smallest_excess": 0.015,
            "scores": scores,
        }
    )


def scores(difference: float, low: float | None) -> ScoreChange:
    passed = low is not None and low > -0.01
    return ScoreChange(
        prompts=128, control=0.5, candidate=0.5 + difference, difference=difference, low=low, passed=passed
    )


UNCHANGED = outputs()
SCORES_HOLD = scores(0.002, -0.006)
SCORES_UNSURE = scores(-0.004, -0.02)
SCORES_FELL_LITTLE = scores(-0.005, -0.007)  # surely, but by less than a point
SCORES_FELL = scores(-0.05, -0.07)

finite = st.floats(-2, 2, allow_subnormal=False)
blocks = st.one_of(st.lists(finite, min_size=5, max_size=5), st.lists(finite, min_size=10, max_size=10))


def verdict_of(log_ratios: list[float], rule: Rule = SHORT, change: OutputChange | None = UNCHANGED) -> Verdict:
    verdict = decide(log_ratios, rule, change)
    assert verdict is not None
    return verdict


# The figures


@pytest.mark.parametrize(
    ("looks", "figures"), [((5, 10), (3.495, 2.685)), ((10, 20, 40), (2.933, 2.625, 2.502))], ids=["5/10", "10/20/40"]
)
def test_t_is_computed_from_n_and_alpha_split_over_the_looks(looks: tuple[int, ...], figures: tuple[float]) -> None:
    assert [t_critical(n, 0.025, looks) for n in looks] == pytest.approx(figures, abs=0.0005)


def test_halved_alpha_asks_for_a_larger_t() -> None:
    assert t_critical(10, 0.0125, (5, 10)) == pytest.approx(stats.t.ppf(1 - 0.00625, 9), rel=1e-12)


def test_figures_agree_with_the_textbook_t_interval() -> None:
    verdict = verdict_of(UNCLEAR)
    wide = stats.ttest_1samp(UNCLEAR, 0).confidence_interval(1 - 0.025)
    one_sided = stats.ttest_1samp(UNCLEAR, 0, alternative="less").confidence_interval(0.95)
    assert verdict.mean == pytest.approx(np.mean(UNCLEAR))
    assert verdict.sd == pytest.approx(np.std(UNCLEAR, ddof=1))
    assert (verdict.gain_low, verdict.gain_high) == pytest.approx(tuple(np.expm1(wide)))
    assert verdict.gain_upper95 == pytest.approx(math.expm1(one_sided.high))
    assert verdict.gain == pytest.approx(math.expm1(np.mean(UNCLEAR)))


@pytest.mark.parametrize("rule", [SHORT, LONG, Rule(alpha=0.025 / 8)])
@pytest.mark.parametrize("power", [0.5, 0.8, 0.95])
def test_the_detectable_gain_is_promoted_with_the_power_it_names(rule: Rule, power: float) -> None:
    sd, n = 0.03, rule.looks[-1]
    shift = (math.log1p(detectable_gain(sd, rule, power)) - math.log1p(rule.margin)) * math.sqrt(n) / sd
    assert stats.nct.sf(t_critical(n, rule.alpha, rule.looks), n - 1, shift) == pytest.approx(power, abs=1e-6)


def test_without_noise_any_gain_above_the_margin_is_detectable() -> None:
    assert detectable_gain(0.0, SHORT) == pytest.approx(0.01)


# The table, top to bottom


def test_a_sure_gain_with_outputs_as_reshuffling_is_promoted() -> None:
    verdict = verdict_of(FASTER)
    assert (verdict.verdict, verdict.exit_code, verdict.blocks, verdict.look) == ("promote", 0, 5, 1)
    assert "+20.9 %" in verdict.reason
    assert "margin of 1 %" in verdict.reason


def test_a_gain_surely_below_min_effect_keeps_the_current_order() -> None:
    verdict = verdict_of(NO_GAIN)
    assert (verdict.verdict, verdict.exit_code) == ("keep", 10)
    assert "surely below the minimum effect of 3 %" in verdict.reason


def test_a_sure_gain_below_the_minimum_effect_is_still_promoted() -> None:
    verdict = verdict_of([math.log1p(0.02) + d / 10 for d in NO_GAIN])
    assert verdict.verdict == "promote"
    assert verdict.gain_upper95 is not None
    assert verdict.gain_upper95 < 0.03


def test_a_gain_surely_above_zero_but_not_above_the_margin_is_not_promoted() -> None:
    verdict = verdict_of([math.log1p(0.012) + d for d in NO_GAIN])
    assert verdict.gain_low is not None
    assert 0 < verdict.gain_low < 0.01
    assert verdict.verdict == "keep"


def test_nothing_sure_before_the_last_look_asks_for_more_blocks() -> None:
    assert decide(UNCLEAR[:5], SHORT, outputs()) is None


def test_nothing_sure_at_the_last_look_is_inconclusive() -> None:
    verdict = verdict_of(UNCLEAR)
    assert (verdict.verdict, verdict.exit_code, verdict.look) == ("inconclusive", 11, 2)
    assert "neither surely above the margin of 1 % nor surely below the minimum effect of 3 %" in verdict.reason


@pytest.mark.parametrize("n", [0, 1, 4, 6, 9])
def test_between_looks_there_is_no_verdict(n: int) -> None:
    assert decide((FASTER * 2)[:n], SHORT, outputs()) is None


def test_one_block_against_four_cannot_pass_the_sign_flip_test() -> None:
    verdict = verdict_of([0.1, 0.1, 0.1, 0.1, -0.001], Rule(looks=(5,)))
    assert verdict.gain_low is not None
    assert verdict.gain_low > 0.01
    assert verdict.verdict == "inconclusive"
    assert "p = 0.062, above 0.05" in verdict.reason


# Invalid data


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_missing_or_infinite_ratio_is_invalid_and_its_block_named(bad: float) -> None:
    verdict = verdict_of([*FASTER[:2], bad, *FASTER[3:]])
    assert (verdict.verdict, verdict.exit_code, verdict.mean) == ("invalid", 13, None)
    assert "block 3" in verdict.reason


def test_equal_ratios_are_invalid() -> None:
    verdict = verdict_of([0.2, 0.2, 0.2, 0.2, math.nextafter(0.2, 1)])
    assert verdict.verdict == "invalid"
    assert "same ratio" in verdict.reason


def test_more_blocks_than_planned_are_invalid() -> None:
    verdict = verdict_of([*UNCLEAR, 0.2])
    assert verdict.verdict == "invalid"
    assert "11 blocks" in verdict.reason
    assert "ended at 10" in verdict.reason


@pytest.mark.parametrize("n", [0, 1, 2, 4, 5])
def test_a_callers_reason_makes_any_number_of_blocks_invalid(n: int) -> None:
    verdict = decide(FASTER[:n], SHORT, outputs(), invalid="block 6 stayed invalid in 3 attempts")
    assert verdict is not None
    assert (verdict.verdict, verdict.blocks, verdict.look) == ("invalid", n, 1 if n == 5 else None)
    assert verdict.reason.startswith("Block 6 stayed invalid in 3 attempts. ")


def test_ratios_beyond_any_machine_make_no_traceback() -> None:
    assert verdict_of([600.0, 650.0, 700.0, 710.0, 720.0]).gain_high == math.inf


# Outputs


@pytest.mark.parametrize(
    ("change", "not_worse", "proven"),
    [
        (outputs("as_reshuffling"), "promote", "promote"),
        (outputs("undecided"), "promote", "inconclusive"),
        (outputs("more_than_reshuffling"), "keep", "keep"),
        (None, "inconclusive", "inconclusive"),
        (outputs("undecided").model_copy(update={"excess": None}), "inconclusive", "inconclusive"),
        (outputs("undecided", vacuous=True), "promote", "inconclusive"),
        (outputs("more_than_reshuffling", vacuous=True), "promote", "inconclusive"),
        (outputs("more_than_reshuffling", vacuous=True, scores=SCORES_HOLD), "promote", "promote"),
        (outputs("as_reshuffling", vacuous=True, scores=SCORES_UNSURE), "inconclusive", "inconclusive"),
        (outputs("as_reshuffling", vacuous=True, scores=SCORES_FELL), "keep", "keep"),
        (outputs("as_reshuffling", scores=SCORES_HOLD), "promote", "promote"),
        (outputs("as_reshuffling", scores=SCORES_UNSURE), "inconclusive", "inconclusive"),
        (outputs("as_reshuffling", scores=scores(0.1, None)), "inconclusive", "inconclusive"),
        (outputs("as_reshuffling", scores=SCORES_FELL), "keep", "keep"),
        (outputs("as_reshuffling", scores=SCORES_FELL_LITTLE), "promote", "promote"),
        (outputs("undecided", scores=SCORES_HOLD), "promote", "inconclusive"),
        (outputs("more_than_reshuffling", scores=SCORES_HOLD), "keep", "keep"),
    ],
)
def test_what_the_outputs_make_of_a_sure_gain(change: OutputChange | None, not_worse: str, proven: str) -> None:
    assert verdict_of(FASTER, SHORT, change).verdict == not_worse
    assert verdict_of(FASTER, PROVEN, change).verdict == proven


@pytest.mark.parametrize(
    ("change", "rule", "says"),
    [
        (outputs("undecided"), SHORT, "undecided: +0.4 points (-0.4 to +1.2)"),
        (outputs("undecided"), PROVEN, "the outputs do not meet the policy `proven`"),
        (outputs(vacuous=True), SHORT, "Outputs could not be judged"),
        (outputs(vacuous=True), PROVEN, "Outputs could not be judged"),
        (outputs("more_than_reshuffling"), SHORT, "more than reshuffling changes them: +5.0 points (+4.0 to +6.0)"),
        (outputs(scores=SCORES_UNSURE), SHORT, "-0.4 points, lower bound -2.0"),
        (outputs(scores=SCORES_FELL), SHORT, "Scores fell: -5.0 points"),
        (None, SHORT, "No outputs were compared"),
    ],
)
def test_the_reason_says_what_the_outputs_did(change: OutputChange | None, rule: Rule, says: str) -> None:
    assert says in verdict_of(FASTER, rule, change).reason


@pytest.mark.parametrize("answer", ["as_reshuffling", "undecided"])
def test_outputs_promote_nothing_without_a_gain(answer: str) -> None:
    assert verdict_of(NO_GAIN, SHORT, outputs(answer)).verdict == "keep"
    assert verdict_of(UNCLEAR, SHORT, outputs(answer)).verdict == "inconclusive"


def test_outputs_that_changed_too_much_keep_the_order_before_the_gain_is_clear() -> None:
    assert verdict_of(UNCLEAR[:5], SHORT, outputs("more_than_reshuffling")).verdict == "keep"


# What every verdict says


@pytest.mark.parametrize(
    "verdict",
    [
        verdict_of(NO_GAIN),
        verdict_of(UNCLEAR),
        verdict_of(FASTER, PROVEN, outputs("undecided")),
        verdict_of(FASTER, SHORT, outputs("more_than_reshuffling")),
        decide(FASTER[:4], SHORT, None, invalid="block 5 stayed invalid"),
        refused("the predicted gain of 1 % is below what could be seen", SHORT, sd=0.03),
    ],
    ids=lambda verdict: verdict.verdict,
)
def test_every_refusal_to_promote_names_the_smallest_gain_it_could_have_seen(verdict: Verdict) -> None:
    assert verdict.detectable_gain is not None
    assert f"80 % power is {100 * verdict.detectable_gain:+.1f} %." in verdict.reason


def test_without_a_spread_the_smallest_gain_is_said_to_be_unknown() -> None:
    for verdict in (refused("dense model", SHORT), verdict_of([0.2] * 5)):
        assert verdict.detectable_gain is None
        assert "not known" in verdict.reason


def test_a_refusal_carries_its_reason_and_code() -> None:
    verdict = refused("a dense model reads the same weights in every order", SHORT)
    assert (verdict.verdict, verdict.exit_code, verdict.blocks, verdict.look) == ("refused", 12, 0, None)
    assert verdict.reason.startswith("A dense model reads the same weights in every order. ")


def test_every_verdict_has_its_own_exit_code() -> None:
    assert sorted(EXIT_CODES.values()) == [0, 10, 11, 12, 13]


# Properties


@settings(deadline=None)
@given(blocks, st.randoms(use_true_random=False))
def test_the_order_of_blocks_changes_no_bit_of_the_verdict(ratios: list[float], shuffler: object) -> None:
    shuffled = list(ratios)
    shuffler.shuffle(shuffled)  # type: ignore[attr-defined]
    verdict, other = (decide(values, SHORT, outputs()) for values in (ratios, shuffled))
    assume(verdict is not None)
    assert verdict is not None
    assert other == verdict.model_copy(update={"log_ratios": tuple(shuffled)})


@settings(deadline=None)
@given(blocks, st.integers(-8, 8))
def test_without_a_margin_the_unit_of_log_ratios_changes_no_promotion(ratios: list[float], exponent: int) -> None:
    rule = Rule(margin=0.0, looks=(len(ratios),))
    assume(max(ratios) - min(ratios) > 1e-6)
    scaled = [math.ldexp(ratio, exponent) for ratio in ratios]
    verdicts = [verdict_of(values, rule) for values in (ratios, scaled)]
    assert len({verdict.verdict == "promote" for verdict in verdicts}) == 1
    assert verdicts[0].sign_flip_p == verdicts[1].sign_flip_p


@settings(deadline=None)
@given(blocks, st.floats(0.01, 1))
def test_more_gain_in_every_block_never_loses_a_promotion(ratios: list[float], more: float) -> None:
    verdict, better = (decide(values, SHORT, outputs()) for values in (ratios, [ratio + more for ratio in ratios]))
    if verdict and verdict.verdict == "promote":
        assert better
        assert better.verdict == "promote"


@settings(deadline=None)
@given(blocks)
def test_the_numbers_of_a_verdict_agree_with_its_name(ratios: list[float]) -> None:
    verdict = decide(ratios, SHORT, outputs())
    if verdict is None or verdict.verdict == "invalid":
        return
    assert verdict.gain_low is not None
    assert verdict.gain_upper95 is not None
    assert verdict.sign_flip_p is not None
    faster = verdict.gain_low > 0.01 and verdict.sign_flip_p <= 0.05
    slow = verdict.gain_upper95 < 0.03
    assert verdict.verdict == ("promote" if faster else "keep" if slow else "inconclusive")


anything = st.lists(st.floats(), min_size=5, max_size=5)
changes = st.sampled_from([None, outputs(), outputs("undecided", scores=SCORES_UNSURE), outputs(vacuous=True)])


@settings(deadline=None)
@given(st.one_of(blocks, anything), changes)
def test_a_verdict_survives_json(ratios: list[float], change: OutputChange | None) -> None:
    verdict = decide(ratios, SHORT, change)
    assume(verdict is not None)
    assert verdict is not None
    text = verdict.model_dump_json()
    again = Verdict.model_validate_json(text)
    assert again.model_dump_json() == text
    assert json.loads(text)["verdict"] == verdict.verdict
    if all(abs(ratio) < 1e100 for ratio in ratios):  # beyond, sums overflow to NaN, which equals nothing
        assert again == verdict


# The rule


@pytest.mark.parametrize("looks", [(), (2, 5), (5, 5), (10, 5), (3, 4), (10, 41)])
def test_looks_that_cannot_work_are_refused(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError, match="look"):
        Rule(looks=looks)


def test_a_rule_survives_json() -> None:
    assert Rule.model_validate_json(LONG.model_dump_json()) == LONG


def test_an_unknown_key_in_a_rule_is_refused() -> None:
    with pytest.raises(ValidationError, match="confidence"):
        Rule.model_validate({"confidence": 0.9})
