"""A gain is spelled one way everywhere, and nothing is never below nothing."""

from __future__ import annotations

import pytest

from orderproof.job.formatting import signed, with_interval


@pytest.mark.parametrize(
    ("share", "said"), [(0.0634, "+6.3%"), (-0.12, "-12.0%"), (0.0, "+0.0%"), (-0.0, "+0.0%"), (-0.0004, "+0.0%")]
)
def test_a_share_has_its_sign_unless_it_rounds_to_nothing(share: float, said: str) -> None:
    assert signed(share) == said


def test_a_gain_is_shown_with_its_interval_if_it_has_one() -> None:
    assert with_interval(0.063, 0.012, 0.11) == "+6.3% (+1.2% to +11.0%)"
    assert with_interval(0.063, None, None) == with_interval(0.063, 0.01, None) == "+6.3%"
