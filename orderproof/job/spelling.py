"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like `word`; None: none is like it.

    Args:
        cutoff: the similarity that is needed, 0 to 1, as difflib measures it.
    """
    return next(iter(difflib.get_close_matches(word, list(known), 1, cutoff)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'label'?`, or the known names where none is like `word`."""
    names = list(dict.fromkeys(known))
    near = nearest(word, names)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"known here: {', '.join(names)}" if names else "there is none"
