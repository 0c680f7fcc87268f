"""Numbers, durations and settings are written for readers."""

from __future__ import annotations

import math

import pytest

from orderproof.runs.page_filters import amount, duration, limit, number, percent, points, text


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (number(0.01234), "0.0123"),
        (number(7.76), "7.76"),
        (number(12.345), "12.35"),
        (number(1234.5), "1,234"),
        (number(0), "0"),
        (number(None), "–"),
        (number(math.nan), "–"),
        (percent(0.0634), "6.3 %"),
        (percent(-0.0001, signed=True), "+0.0 %"),
        (percent(None), "–"),
        (points(0.008), "+0.8 points"),
        (duration(3.21), "3.2 s"),
        (duration(-7300), "−2 h 2 min"),
        (duration(600), "10 min"),
        (limit(0.0125), "1.25 %"),
        (amount(0.00314159, "USD"), "0.00314 USD"),
        (amount(1234.5, "EUR"), "1,234.50 EUR"),
        (amount(0, "EUR"), "0.00 EUR"),
        (text({"a": [1, 2.5], "b": True, "c": {}}), "a: 1, 2.5, b: yes, c: none"),
        (text([]), "none"),
    ],
)
def test_values_are_written_for_readers(shown: str, expected: str) -> None:
    assert shown.replace("\u00a0", " ") == expected
