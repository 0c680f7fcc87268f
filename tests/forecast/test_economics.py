"""A gain in time and money, what finding it out costs, and when that is paid back."""

from __future__ import annotations

import pytest

from orderproof.forecast.economics import break_even_prompts, worth
from orderproof.job.spec import Reporting
from orderproof.measure.verdict import Rule

PRICE = Reporting(price_per_hour=3.6, runs_per_month=30)


def test_a_quarter_more_throughput_saves_a_fifth_of_the_time() -> None:
    one = worth((0.25, 0.0, 1.0), 1000, ordering_s=5, pass_s=1000, rule=Rule(), arms=2, reporting=PRICE)
    assert (one.saved_s, one.saved_low_s, one.saved_high_s) == pytest.approx((200, 0, 500))
    assert one.saved_per_month == pytest.approx(200 * 30 * 0.001)
    assert one.ordering_share == pytest.approx(0.005)


def test_a_trial_is_paid_back_by_what_its_runs_save_beyond_their_ordering() -> None:
    one = worth((0.25, 0.2, 0.3), 1000, ordering_s=10, pass_s=400, rule=Rule(looks=(5, 10)), arms=3, reporting=PRICE)
    assert one.trial_s == 10 * 3 * 400
    assert one.runs_to_break_even == pytest.approx(12_000 / 190)
    assert break_even_prompts(one, 768) == pytest.approx(768 * 12_000 / 190)


@pytest.mark.parametrize(("gain", "ordering_s"), [(0.0, 0), (-0.1, 0), (0.01, 50)])
def test_what_saves_nothing_never_pays(gain: float, ordering_s: float) -> None:
    one = worth((gain, gain, gain), 1000, ordering_s, 1000, Rule(), 2, PRICE)
    assert one.runs_to_break_even is None
    assert break_even_prompts(one, 768) is None
