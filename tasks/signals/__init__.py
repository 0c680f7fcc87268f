"""Signals: what of a prompt predicts which experts it will use, as numbers.

In: a signal's name and texts. Out: one row of features per text. Knows nothing of orders, engines, MLflow or DVC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from orderproof.tasks.errors import OrderproofError

LEXICAL = "lexical"  # any other name is that of a sentence-transformers model
READ_CHARACTERS = 8192  # of each text: more than any usual embedding model reads, and a bound on time and memory

Progress = Callable[[int, int | None], None]  # (texts done, texts in all if that is known)


class SignalError(OrderproofError):
    """A signal that cannot be taken: which, why, and what to do."""


def features(
    signal: str, texts: Iterable[str], *, total: int | None = None, progress: Progress | None = None
) -> Any:  # sparse matrices have no common type with arrays
    """One row of unit length per text (all zeros where a text has nothing to see).

    Args:
        signal: `lexical`, or the name of an embedding model as in signals/embedding.py.
        texts: streamed; only the first READ_CHARACTERS of each are read.
        total: how many there are, only to tell `progress`.

    Returns:
        float32[texts, features]: scipy CSR for `lexical`, else a numpy array.

    Raises:
        SignalError: no such model.
    """
    beginnings = map(_readable, texts)
    if signal == LEXICAL:
        from orderproof.tasks.signals import lexical

        return lexical.features(beginnings, total=total, progress=progress)
    from orderproof.tasks.signals import embedding

    return embedding.features(beginnings, signal, total=total, progress=progress)


def _readable(text: str) -> str:
    """The beginning of a text; half surrogate pairs, which JSON may hold and no tokenizer takes, as question marks."""
    return text[:READ_CHARACTERS].encode("utf-8", "replace").decode()
