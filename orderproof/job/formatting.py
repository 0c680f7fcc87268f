"""Gains and other signed shares as every text and log line shows them.

Pages and the verdict's own sentences have a space before the percent sign and format their figures themselves.
"""

from __future__ import annotations


def signed(share: float) -> str:
    """0.063 → `+6.3%`; what rounds to nothing is `+0.0%`, whatever its sign."""
    return f"{share:+z.1%}"


def with_interval(gain: float, low: float | None, high: float | None) -> str:
    """`+6.3% (+1.2% to +11.0%)`; without an interval only the gain."""
    return signed(gain) + ("" if low is None or high is None else f" ({signed(low)} to {signed(high)})")
