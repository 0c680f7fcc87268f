"""An order: a permutation of prompts with its provenance."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from orderproof.job.errors import OrderproofError
from orderproof.orders.order_record import OrderRecord

T = TypeVar("T")


class OrderError(OrderproofError):
    """An order that cannot be made or does not fit: what is wrong, where, and what to do."""


@dataclass(frozen=True, eq=False)
class Order:
    """A permutation of N prompts. Two orders are equal if their records are.

    Raises:
        OrderError: not a permutation.
    """

    permutation: NDArray[np.int64]  # [N]; permutation[k]: index in the file of the k-th prompt sent
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)  # values that JSON can hold
    seeds: Mapping[str, int] = field(default_factory=dict)
    dataset_md5: str = ""
    purity: float | None = None  # of its neighbours, if all prompts have labels: see orders/purity.py

    def __post_init__(self) -> None:
        object.__setattr__(self, "permutation", _checked_permutation(self.permutation))

    def __len__(self) -> int:
        return len(self.permutation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order) and self.record() == other.record()

    def __hash__(self) -> int:
        return hash(self.sha256)

    @cached_property
    def sha256(self) -> str:
        """Hash of the permutation as little-endian int64."""
        return hashlib.sha256(self.permutation.astype("<i8").tobytes()).hexdigest()

    def record(self) -> OrderRecord:
        """Provenance: enough to make the same permutation again."""
        return OrderRecord(
            method=self.method,
            parameters=dict(self.parameters),
            seeds=dict(self.seeds),
            dataset_md5=self.dataset_md5,
            sha256=self.sha256,
        )

    def inverse(self) -> NDArray[np.int64]:
        """int64[N]: prompt i of the file is the inverse[i]-th to be sent."""
        places = np.empty_like(self.permutation)
        places[self.permutation] = np.arange(len(places))
        return places

    def apply(self, prompts: Sequence[T]) -> list[T]:
        """Put a sequence that is in the file's order into the order of sending.

        Raises:
            OrderError: not as many as the order has prompts.
        """
        self._check_number(len(prompts), "prompts")
        return [prompts[i] for i in self.permutation.tolist()]

    def restore(self, outputs: Sequence[T]) -> list[T]:
        """Put a sequence that is in the order of sending back into the file's order.

        Raises:
            OrderError: not as many as the order has prompts.
        """
        self._check_number(len(outputs), "outputs")
        return [outputs[k] for k in self.inverse().tolist()]

    def _check_number(self, number: int, noun: str) -> None:
        if number != len(self):
            raise OrderError(f"{number} {noun} for an order of {len(self)} prompts: use the order of these prompts")


def _checked_permutation(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """A read-only copy of indices that are 0 … N − 1, each once."""
    values = np.asarray(indices)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise OrderError(f"an order is a list of whole numbers, not {values.dtype} of shape {values.shape}")
    ascending = np.sort(values)
    wrong = np.flatnonzero(ascending != np.arange(len(values)))
    if wrong.size:
        raise OrderError(
            f"not an order of {len(values)} prompts: it must hold each of 0 to {len(values) - 1} once; sorted, "
            f"{wrong[0]} is expected where it has {ascending[wrong[0]]}"
        )
    copy = values.astype(np.int64)
    copy.setflags(write=False)
    return copy
