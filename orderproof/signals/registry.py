"""Signals: what of a prompt predicts which experts it will use, as numbers.

In: a signal's name and prompts. Out: rows of features, one chunk of prompts after the other, so that a million prompts
need no more memory than a chunk. Knows nothing of orders, engines, MLflow or DVC.

Each signal is a module here with a function `load`; the names under `OrderSpec.signal` are the registry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from orderproof.job.errors import OrderproofError
from orderproof.job.hashing import md5_of
from orderproof.job.spec import OrderSpec
from orderproof.signals.served_model import ServedModel

CHUNK_PROMPTS = 4096
ROUTING_SIGNALS = ("fingerprint", "predicted", "observed")  # rows are roots of the frequencies of each layer's experts
READ_CHARACTERS = 8192  # of each text: more than any usual embedding model reads, and a bound on time and memory


class SignalError(OrderproofError):
    """A signal that cannot be taken: which, why, and what to do."""


Indices = Sequence[int] | NDArray[np.int64]  # of prompts among all, from 0


class Prompts(Protocol):
    """N prompts, any of them at hand: what a signal may see."""

    @property
    def ids(self) -> Sequence[str]: ...

    @property
    def text(self) -> Callable[[int], str]: ...

    @property
    def token_ids(self) -> Callable[[Indices], Sequence[Sequence[int]]] | None:
        """Of some prompts, as the model meets them; None: not tokenized yet."""
        ...

    def __len__(self) -> int: ...


# Some prompts, by their places → float32[places, features], a numpy array or scipy CSR, which have no common type. Rows
# have unit length (all zeros where there is nothing to see); those of the routing signals have it in every layer.
Signal = Callable[[Prompts, Indices], Any]


@functools.lru_cache(maxsize=4)  # windows ask for it again and again
def load(spec: OrderSpec, served: ServedModel) -> Signal:
    """Get a signal ready: whatever model it needs is loaded once.

    Raises:
        SignalError: it cannot be loaded.
    """
    signal: Signal = import_module(f"orderproof.signals.{spec.signal}").load(spec, served)
    return signal


def provenance(spec: OrderSpec, served: ServedModel) -> dict[str, Any]:
    """What it takes to take the same signal again, beside the served model."""
    known: dict[str, Any] = {"signal": spec.signal}
    if spec.signal == "embedding":
        known["embedding"] = spec.embedding
    if spec.signal in ROUTING_SIGNALS and served.routes and served.routes.exists():
        known["routes_md5"] = _md5(served.routes)
    return known


@functools.lru_cache(maxsize=1)  # windows ask for it again and again
def _md5(routes: Path) -> str:
    return md5_of(routes)


def clear_caches() -> None:
    """Load signals anew: the files that they rest on have changed."""
    load.cache_clear()
    _md5.cache_clear()


def features(signal: Signal, prompts: Prompts, places: Indices | None = None) -> Iterator[Any]:
    """The rows of all prompts, or of those at `places`, in chunks of CHUNK_PROMPTS.

    Raises:
        SignalError: as the signal itself.
    """
    places = range(len(prompts)) if places is None else places
    for start in range(0, len(places), CHUNK_PROMPTS):
        yield signal(prompts, places[start : start + CHUNK_PROMPTS])


def stack(chunks: Iterable[Any]) -> Any:
    """At least one chunk → one matrix."""
    from scipy import sparse

    pieces = list(chunks)
    return sparse.vstack(pieces, format="csr") if sparse.issparse(pieces[0]) else np.concatenate(pieces)


def texts_of(prompts: Prompts, places: Indices) -> list[str]:
    """Their beginnings, readable by any tokenizer."""
    return [readable(prompts.text(int(i))) for i in places]


def readable(text: str) -> str:
    """The beginning of a text; half surrogate pairs, which JSON may hold and no tokenizer takes, as question marks."""
    return text[:READ_CHARACTERS].encode("utf-8", "replace").decode()
