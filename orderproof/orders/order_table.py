"""order.parquet: an order kept by its prompts' ids, one row per prompt in the order of sending (ORDER_SCHEMA)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orderproof.job.files import atomic_file
from orderproof.orders.order import Order, OrderError
from orderproof.orders.order_record import OrderRecord

ORDER_SCHEMA = pa.schema([pa.field("position", pa.int64(), False), pa.field("prompt_id", pa.string(), False)])
BATCH_ROWS = 65_536  # read at once
RESTORE = "Restore the file with `dvc checkout`, or measure again"

FindPrompts = Callable[[Sequence[str]], NDArray[np.int64]]  # ids → their indices in the prompts file, -1 if not there


def write_order(path: Path, order: Order, ids: Sequence[str]) -> None:
    """Write an order atomically. `ids` are the prompts' ids in the file's order.

    Raises:
        OrderError: the number of ids is another one, or an id is not unique.
    """
    if len(set(ids)) < len(ids):
        raise OrderError(f"{path}: prompts are kept by their ids, and some ids are not unique. Give each its own id")
    table = pa.table([pa.array(range(len(order)), pa.int64()), pa.array(order.apply(ids), pa.string())], ORDER_SCHEMA)
    with atomic_file(path) as sink:
        pq.write_table(table, sink, compression="zstd")


def read_order(path: Path, record: OrderRecord, find: FindPrompts, prompts: int) -> Order:
    """Read the order that `record` describes; beside the permutation, memory does not grow with the prompts.

    Prompts that it lacks, because they were left out when it was made, are sent first: most get no output, and nobody
    waits long for that.

    Args:
        find: looks up ids in the prompts file that the order is of.
        prompts: how many there are.

    Raises:
        OrderError: the file is missing or damaged, holds ids that are not in the prompts file, or is another order.
    """
    parts = [np.empty(0, np.int64)]
    rows = 0
    try:
        with pq.ParquetFile(path) as table:
            for batch in table.iter_batches(BATCH_ROWS, columns=ORDER_SCHEMA.names):
                positions, ids = batch.select(ORDER_SCHEMA.names).cast(ORDER_SCHEMA).columns
                if not np.array_equal(positions.to_numpy(), np.arange(rows, rows + len(ids))):
                    raise ValueError(f"the positions are not 0, 1, 2, … from row {rows} on")
                parts.append(_find(ids.to_pylist(), find))
                rows += len(ids)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise OrderError(f"{path}: not readable as an order: {' '.join(str(error).split())}. {RESTORE}") from None
    places = np.concatenate(parts)
    kept = np.zeros(prompts, np.bool_)
    kept[places] = True
    among_kept = (np.cumsum(kept) - 1)[places]
    try:
        order = Order(among_kept, record.method, record.parameters, record.seeds, record.dataset_md5)
    except OrderError as error:
        raise OrderError(f"{path}: {error}. {RESTORE}") from None
    if order.sha256 != record.sha256:
        raise OrderError(f"{path}: not the order whose hash the record has ({record.sha256[:12]}). {RESTORE}")
    lacking = np.flatnonzero(~kept)
    return replace(order, permutation=np.concatenate([lacking, places])) if lacking.size else order


def find_among(ids: Sequence[str]) -> FindPrompts:
    """Look up prompts in a list of ids."""
    index_of = {prompt_id: index for index, prompt_id in enumerate(ids)}
    return lambda wanted: np.array([index_of.get(prompt_id, -1) for prompt_id in wanted], np.int64)


def _find(ids: list[str], find: FindPrompts) -> NDArray[np.int64]:
    indices = find(ids)
    unknown = np.flatnonzero(indices < 0)
    if unknown.size:
        raise ValueError(f"the prompts file has no prompt with the id {ids[unknown[0]]!r}")
    return indices
