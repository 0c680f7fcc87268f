"""An order: a permutation with its provenance, and the table that pins it.

In: a permutation and how it was made. Out: a frozen `Order`; order.parquet written and read. Knows nothing of how
prompts are compared, nor of engines or verdicts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orderproof.job.errors import OrderproofError
from orderproof.job.files import atomic_file
from orderproof.orders.order_record import OrderRecord

# Row k: the k-th prompt to be sent.
ORDER_SCHEMA = pa.schema([pa.field("position", pa.int64(), False), pa.field("prompt_id", pa.string(), False)])

T = TypeVar("T")


class OrderError(OrderproofError):
    """An order that cannot be made, or does not fit: what is wrong, where, and what to do."""


@dataclass(frozen=True, eq=False)
class Order:
    """A permutation of N prompts. Two orders are equal if their records are.

    Raises:
        OrderError: not a permutation.
    """

    permutation: NDArray[np.int64]  # [N]; permutation[k]: index in the file of the k-th prompt sent
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)  # as JSON holds them
    seeds: Mapping[str, int] = field(default_factory=dict)
    dataset_md5: str = ""
    purity: float | None = None  # of its neighbours, where all prompts have labels: see orders/purity.py

    def __post_init__(self) -> None:
        object.__setattr__(self, "permutation", _permutation(self.permutation))

    def __len__(self) -> int:
        return len(self.permutation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order) and self.record() == other.record()

    def __hash__(self) -> int:
        return hash(self.sha256)

    @cached_property
    def sha256(self) -> str:
        """Of the permutation as little-endian int64."""
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
        """Anything in the file's order → the order of sending. Raises OrderError for another number of prompts."""
        self._check_number(len(prompts), "prompts")
        return [prompts[i] for i in self.permutation.tolist()]

    def restore(self, outputs: Sequence[T]) -> list[T]:
        """Anything in the order of sending → the file's order. Raises OrderError for another number of outputs."""
        self._check_number(len(outputs), "outputs")
        return [outputs[k] for k in self.inverse().tolist()]

    def _check_number(self, given: int, what: str) -> None:
        if given != len(self):
            raise OrderError(
                f"{given} {what} for an order of {len(self)} prompts: take the order that was made of them"
            )


def write_order(path: Path, order: Order, ids: Sequence[str]) -> None:
    """Pin an order by the prompts' ids, atomically. `ids` is in the file's order.

    Raises:
        OrderError: another number of ids, or ids that name no single prompt.
    """
    if len(set(ids)) < len(ids):
        raise OrderError(f"{path}: an order cannot be pinned by ids that are not unique. Give every prompt its own id")
    table = pa.table([pa.array(range(len(order)), pa.int64()), pa.array(order.apply(ids), pa.string())], ORDER_SCHEMA)
    with atomic_file(path) as sink:
        pq.write_table(table, sink, compression="zstd")


def read_order(path: Path) -> list[str]:
    """The prompts' ids in the order of sending.

    Raises:
        OrderError: the file is missing, or is not a table of distinct ids at the positions 0 … N − 1.
    """
    try:
        table = pq.read_table(path, columns=ORDER_SCHEMA.names).cast(ORDER_SCHEMA).sort_by("position")
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise OrderError(f"{path}: not readable as an order: {' '.join(str(error).split())}. {_REMAKE}") from None
    ids: list[str] = table["prompt_id"].to_pylist()
    if not np.array_equal(table["position"].to_numpy(), np.arange(len(ids))):
        raise OrderError(f"{path}: its positions are not 0 to {len(ids) - 1}, each once. {_REMAKE}")
    if len(set(ids)) < len(ids):
        raise OrderError(f"{path}: a prompt id stands in it twice. {_REMAKE}")
    return ids


_REMAKE = "Take back the file that DVC recorded, or measure again"


def _permutation(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """A read-only copy of indices that are 0 … N − 1, each once."""
    given = np.asarray(indices)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise OrderError(f"an order is a list of whole numbers, not {given.dtype} of shape {given.shape}")
    ranked = np.sort(given)
    wrong = np.flatnonzero(ranked != np.arange(len(given)))
    if wrong.size:
        raise OrderError(
            f"not an order of {len(given)} prompts: it must hold 0 to {len(given) - 1} once each, and where "
            f"{wrong[0]} should follow it has {ranked[wrong[0]]}"
        )
    copy = given.astype(np.int64)
    copy.setflags(write=False)
    return copy
