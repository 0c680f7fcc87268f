"""How shares and gains are written in every message, page and log line."""

from __future__ import annotations


def percentage(share: float) -> str:
    """0.063 → `6.3%`."""
    return f"{share:z.1%}"


def signed(share: float) -> str:
    """0.063 → `+6.3%`; what rounds to nothing is `+0.0%`, whatever its sign."""
    return f"{share:+z.1%}"


def with_interval(gain: float, low: float | None, high: float | None) -> str:
    """`+6.3% (+1.2% to +11.0%)`; without an interval only the gain."""
    return signed(gain) + ("" if low is None or high is None else f" ({signed(low)} to {signed(high)})")
