"""Signals: numbers, computed from a prompt, that predict which experts it will use.

Rows of features are computed chunk by chunk, so that a million prompts need no more memory than a chunk. Each signal is
a module of this package with a function `load`; `SignalName` (job/spec.py) lists their names.
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
# Their rows are square roots of frequencies of experts, layer by layer.
ROUTING_SIGNALS = ("fingerprint", "predicted", "observed")
READ_CHARACTERS = 8192  # of each text: more than any usual embedding model reads, and a limit on time and memory


class SignalError(OrderproofError):
    """A signal that cannot be computed: which one, why, and what to do."""


Indices = Sequence[int] | NDArray[np.int64]  # of prompts, from 0


class Prompts(Protocol):
    """N prompts with random access, as far as a signal may read them."""

    @property
    def ids(self) -> Sequence[str]: ...

    @property
    def text(self) -> Callable[[int], str]: ...

    @property
    def token_ids(self) -> Callable[[Indices], Sequence[Sequence[int]]] | None:
        """Token ids of some prompts, as the model receives them; None: not tokenized yet."""
        ...

    def __len__(self) -> int: ...


# (prompts, indices) → float32[indices, features]: a numpy array or scipy CSR, which have no common type. Rows have unit
# length (zeros for a prompt without content); those of the routing signals have unit length in every layer.
Signal = Callable[[Prompts, Indices], Any]


def load(spec: OrderSpec, served: ServedModel) -> Signal:
    """Load a signal and the model it needs; loaded again only if its captured routes have changed.

    Raises:
        SignalError: it cannot be loaded.
    """
    return _load(spec, served, served.capture_version() if spec.signal in ROUTING_SIGNALS else ())


@functools.lru_cache(maxsize=4)  # each window asks for it
def _load(spec: OrderSpec, served: ServedModel, version: object) -> Signal:
    signal: Signal = import_module(f"orderproof.signals.{spec.signal}").load(spec, served)
    return signal


def provenance(spec: OrderSpec, served: ServedModel) -> dict[str, Any]:
    """What is needed to compute the same signal again, beside the served model."""
    parameters: dict[str, Any] = {"signal": spec.signal}
    if spec.signal == "embedding":
        parameters["embedding"] = spec.embedding
    if spec.signal in ROUTING_SIGNALS and served.routes and served.routes.exists():
        parameters["routes_md5"] = _md5(served.routes, served.capture_version())
    return parameters


@functools.lru_cache(maxsize=1)  # each window asks for it
def _md5(routes: Path, version: object) -> str:
    return md5_of(routes)


def features(signal: Signal, prompts: Prompts, indices: Indices | None = None) -> Iterator[Any]:
    """The rows of all prompts, or of those at `indices`, in chunks of CHUNK_PROMPTS.

    Raises:
        SignalError: as the signal itself.
    """
    indices = range(len(prompts)) if indices is None else indices
    for start in range(0, len(indices), CHUNK_PROMPTS):
        yield signal(prompts, indices[start : start + CHUNK_PROMPTS])


def stack(chunks: Iterable[Any]) -> Any:
    """Join one or more chunks into one matrix."""
    from scipy import sparse

    matrices = list(chunks)
    return sparse.vstack(matrices, format="csr") if sparse.issparse(matrices[0]) else np.concatenate(matrices)


def texts_of(prompts: Prompts, indices: Indices) -> list[str]:
    """The beginnings of some prompts' texts, in a form that any tokenizer accepts."""
    return [readable(prompts.text(int(i))) for i in indices]


def readable(text: str) -> str:
    """The beginning of a text, with `?` for half surrogate pairs, which JSON may hold and no tokenizer accepts."""
    return text[:READ_CHARACTERS].encode("utf-8", "replace").decode()
