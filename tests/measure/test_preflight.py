"""What was predicted of a trial may refuse it, where the prediction is sound."""

from __future__ import annotations

import pytest

from orderproof.measure.predicted_gain import PredictedGain
from orderproof.measure.preflight import prediction_refusal
from orderproof.measure.verdict import Rule


@pytest.mark.parametrize(
    ("gain", "high", "detectable", "reason"),
    [
        (0.01, 0.02, None, "surely below the minimum effect of 3%"),
        (0.05, 0.06, 0.08, "the smallest gain that a trial detects here is 8.0%"),
        (0.05, 0.06, 0.04, None),
        (0.02, 0.04, None, None),
    ],
)
def test_a_trial_that_was_foretold_to_show_nothing_is_refused(
    gain: float, high: float, detectable: float | None, reason: str | None
) -> None:
    refusal = prediction_refusal(PredictedGain(gain=gain, low=0.0, high=high), Rule(), detectable)
    assert (refusal is None) == (reason is None)
    assert reason is None or reason in (refusal or "")


def test_the_minimum_effect_is_told_as_it_was_registered() -> None:
    refusal = prediction_refusal(PredictedGain(gain=0.01, low=0.0, high=0.02), Rule(min_effect=0.025), None)
    assert "below the minimum effect of 2.5% " in (refusal or "")


def test_a_prediction_from_a_sample_is_a_low_one_and_refuses_nothing() -> None:
    little = {"gain": 0.0, "low": -0.01, "high": 0.01}
    assert prediction_refusal(PredictedGain(**little), Rule(), None)
    assert prediction_refusal(PredictedGain(**little, captured_share=0.99), Rule(), None) is None


def test_where_nothing_was_foretold_nothing_is_refused() -> None:
    assert prediction_refusal(None, Rule(), 0.5) is None
