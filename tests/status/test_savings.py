"""What measuring cost and what orders saved, from ledgers; by hand on the side."""

from __future__ import annotations

from typing import Any

import pytest

from orderproof.runs.ledger import Entry
from orderproof.status.savings import by_month, sum_up
from orderproof.status.text import ALL_JOBS, savings_lines


def trial(seconds: float = 360.0, **fields: Any) -> Entry:
    given = {"verb": "measure", "run": "t1", "ended_utc": "2026-10-31T23:00:00+00:00", "answer": "promote", **fields}
    return Entry(seconds=seconds, price_per_hour=2.0, currency="USD", **given)


def generation(trial: str = "t1", hours: float = 1.0, **fields: Any) -> Entry:
    given = {"gain": 0.2, "gain_low": 0.1, "gain_high": 0.3, "price_per_hour": 2.0, "currency": "USD", **fields}
    return Entry(
        verb="generate", run="g", ended_utc="2026-11-01T01:00:00+00:00", answer="complete", trial=trial,
        seconds=hours * 3600, **given,
    )  # fmt: skip


def test_runs_in_the_order_of_one_trial_share_the_error_of_its_gain() -> None:
    total = sum_up([trial(), *[generation()] * 10])
    assert (total.trials, total.generations) == (1, 10)
    assert total.cost_hours == pytest.approx(0.1)
    assert (total.saved_hours, total.saved_low_hours, total.saved_high_hours) == pytest.approx((2, 1, 3))
    assert (total.cost, total.saved, total.saved_low, total.saved_high) == pytest.approx((0.2, 4, 2, 6))
    assert total.paid_back


def test_the_errors_of_different_trials_add_up_in_squares() -> None:
    total = sum_up([generation("t1", 3), generation("t2", 4)])
    assert total.saved_hours == pytest.approx(1.4)
    assert (total.saved_low_hours, total.saved_high_hours) == pytest.approx((0.9, 1.9))


def test_a_trial_that_its_order_has_not_paid_for_yet_says_so() -> None:
    rows = [trial(3600), generation()]
    assert not sum_up(rows).paid_back
    text = "\n".join(savings_lines({"it": sum_up(rows), ALL_JOBS: sum_up(rows)}, by_month(rows)))
    assert "has not paid for its trials yet" in text
    assert "1.00 h" in text
    assert "0.20 h (0.10 to 0.30)" in text
    assert "-1.60 USD" in text


def test_runs_without_a_promoted_order_save_nothing_and_aa_tests_cost() -> None:
    total = sum_up([generation(trial=""), trial(verb="aa", answer="inconclusive")])
    assert (total.saved_hours, total.generations, total.trials) == (0, 0, 1)
    assert total.cost_hours == pytest.approx(0.1)


def test_months_are_apart_and_several_currencies_are_not_added() -> None:
    rows = [trial(), generation(currency="EUR")]
    assert list(by_month(rows)) == ["2026-10", "2026-11"]
    assert sum_up(rows).currency == ""
