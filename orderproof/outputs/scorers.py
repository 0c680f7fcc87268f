"""Score a generated text against its reference, from 0 to 1.

To add a scorer, write a function of (text, reference) and add it to `SCORERS`.
"""

from __future__ import annotations

import difflib
import functools
import re
import unicodedata
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from orderproof.job.errors import OrderproofError

# \d is a digit of any script. Groups are of three digits and don't start with 0, so "1,2,3" and "0,125" are no groups.
# A sign counts only if nothing is before it that it could subtract from: "10-4" ends in 4, "= -4" in −4.
NUMBER = re.compile(
    r"""(?P<sign>(?<![\w)])[-−])?
    (?: (?P<by_comma> (?!0)\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)? )                                  # 1,234.5
      | (?P<by_point> (?!0)\d{1,3}(?:(?:\.\d{3})+,\d+|(?:\.\d{3}){2,}(?!\d)) )                   # 1.234,5  1.234.567
      | (?P<by_other> (?!0)\d{1,3}(?:[٬'’\u00a0\u202f]\d{3})+(?!\d)(?:[.,٫]\d+)? )               # 1'234.5  ١٬٢٣٤٫٥
      | (?P<plain> \d+(?:[.,٫]\d+)? ) )                                                          # 1234.5  1,5
    """,
    re.VERBOSE,
)
REGEX_LIMIT_S = 5.0
GROUPING = {"by_comma": ",", "by_point": ".", "by_other": "٬'’\u00a0\u202f", "plain": ""}


class ScorerError(OrderproofError):
    """A scorer that does not exist, or a reference that it cannot use."""


def score(name: str, text: str, reference: str) -> float:
    """How well a text answers, from 0 to 1.

    Raises:
        ScorerError: no scorer has this name, or the reference cannot be used by it.
    """
    if name not in SCORERS:
        near = difflib.get_close_matches(name, SCORERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(SCORERS)}"
        raise ScorerError(f"there is no scorer {name!r}: {hint}")
    return float(SCORERS[name](text, reference))


def exact(text: str, reference: str) -> bool:
    """The same text, whatever its case, its runs of white space and its form of accents (Unicode NFC)."""
    return _plain(text) == _plain(reference)


def contains(text: str, reference: str) -> bool:
    """The reference is somewhere in the text, compared as in `exact`."""
    if not _plain(reference):
        raise ScorerError("scorer 'contains' needs a reference that is not empty: every text contains nothing")
    return _plain(reference) in _plain(text)


def numeric(text: str, reference: str) -> bool:
    """The last number of the text is the last number of the reference ("#### 72" is 72)."""
    expected = last_number(reference)
    if expected is None:
        raise ScorerError(f"scorer 'numeric' needs a reference with a number in it, and {reference!r} has none")
    return last_number(text) == expected


def regex(text: str, reference: str) -> bool:
    """The reference is a pattern (of the library `regex`, whose syntax is that of `re`) and matches somewhere.

    A pattern may take a time that doubles with every character; one that is not done after REGEX_LIMIT_S is an error,
    because a score must not depend on how busy a machine is.
    """
    if not reference.strip():
        raise ScorerError("scorer 'regex' needs a reference that is a pattern, and an empty one matches every text")
    try:
        return _pattern(reference).search(text, timeout=REGEX_LIMIT_S) is not None
    except TimeoutError:
        raise ScorerError(
            f"scorer 'regex': the pattern {reference!r} was not done after {REGEX_LIMIT_S:.0f} s with a text of "
            f"{len(text)} characters: repetitions inside repetitions, as in (a+)+, take that long; write it without"
        ) from None


@functools.lru_cache(maxsize=1024)
def _pattern(reference: str) -> Any:
    import regex as library

    try:
        return library.compile(reference)
    except library.error as error:
        raise ScorerError(f"scorer 'regex': the reference {reference!r} is not a valid pattern: {error}") from None


def last_number(text: str) -> Decimal | None:
    """The last number in a text, digits of any script; None if there is none.

    A comma before exactly three digits groups thousands, a single point never does: 1,234 is 1234, but 1,5 is 1.5 and
    1.234 is 1.234. No-break spaces group, plain ones part numbers. Fractions and powers of ten are not read: "1/2" ends
    in 2.
    """
    found = deque(NUMBER.finditer(text), maxlen=1)
    if not found:
        return None
    last = found[0]
    form = next(name for name in GROUPING if last[name])
    digits = "".join(str(unicodedata.decimal(c, c)) for c in last[form] if c not in GROUPING[form])
    return Decimal(("-" if last["sign"] else "") + digits.replace(",", ".").replace("٫", "."))


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


SCORERS: dict[str, Callable[[str, str], bool]] = {
    "exact": exact,
    "contains": contains,
    "numeric": numeric,
    "regex": regex,
}
