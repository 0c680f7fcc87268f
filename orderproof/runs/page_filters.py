"""How pages spell numbers, durations and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NO_BREAK = "\u00a0"  # between a number and its unit


def percent(fraction: float | None, digits: int = 1, signed: bool = False) -> str:
    """0.063 → `6.3 %`."""
    return "–" if fraction is None else f"{100 * fraction:{'+' if signed else ''}z.{digits}f}{NO_BREAK}%"


def points(fraction: float | None, signed: bool = True) -> str:
    """0.008 → `+0.8 points`."""
    return "–" if fraction is None else f"{100 * fraction:{'+' if signed else ''}z.1f}{NO_BREAK}points"


def number(value: float | None) -> str:
    """About four significant digits without an exponent: 7.76, 12.34, 1,234."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, 2 - magnitude if magnitude < 0 else 3 - max(magnitude, 1))}f}"


def duration(seconds: float) -> str:
    """3.2 s, 12 min, 2 h 14 min: two units at most. A negative one is time lost."""
    sign, seconds = ("−" if seconds < 0 else ""), abs(seconds)
    if seconds < 120:
        return f"{sign}{seconds:.1f}{NO_BREAK}s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{sign}{minutes}{NO_BREAK}min"
    return f"{sign}{minutes // 60:,}{NO_BREAK}h {minutes % 60}{NO_BREAK}min"


def limit(fraction: float) -> str:
    """A registered fraction as it was written: 0.01 → `1 %`, 0.0125 → `1.25 %`."""
    return f"{100 * fraction:.6g}{NO_BREAK}%"


def amount(money: float, currency: str) -> str:
    """12.50 USD; below one unit, three significant digits: 0.00314 USD."""
    digits = 2 if abs(money) >= 1 or money == 0 else 2 - math.floor(math.log10(abs(money)))
    return f"{money:,.{digits}f}{NO_BREAK}{currency}"


def text(value: Any) -> str:
    """A setting as a reader would write it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {text(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


FILTERS = {function.__name__: function for function in (percent, points, number, duration, limit, amount, text)}
