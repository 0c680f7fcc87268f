"""Rows of two files of outputs that belong together: by `id` and, where a prompt has several outputs, `sample`.

In: two outputs.parquet. Out: tables of both with the same outputs in the same rows, some at a time. Files in one order
are read a few thousand rows at a time; for others all that is compared of both is held in memory. Knows nothing of how
outputs are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orderproof.generate.delivery import OUTPUTS_SCHEMA
from orderproof.outputs.disagreement import Int64

ROWS_AT_ONCE = 8192
KEYS = ("id", "sample")
COMPARED = ("id", "text", "token_ids", "finish_reason")  # that every file of outputs has
COLUMNS = (*COMPARED, "sample")


@dataclass(frozen=True)
class Joined:
    """Which rows of two files belong together."""

    then: Path
    now: Path
    rows: tuple[Int64, Int64] | None  # row numbers of each that belong together; None: all, in step
    only_then: int = 0
    only_now: int = 0

    @classmethod
    def of(cls, then: Path, now: Path) -> Joined:
        in_step = _in_step(then, now, KEYS)
        if _count(then) == _count(now) and all(_keys(one).equals(_keys(other)) for one, other in in_step):
            return cls(then, now, None)
        one, other = (_keys(_as_delivered(pq.read_table(path, columns=_held(path, KEYS)))) for path in (then, now))
        found = pc.index_in(one, value_set=other)
        rows_then = np.flatnonzero(pc.is_valid(found).to_numpy(zero_copy_only=False))
        rows_now = pc.drop_null(found).to_numpy().astype(np.int64)
        return cls(then, now, (rows_then, rows_now), len(one) - len(rows_then), len(other) - len(rows_now))

    def pairs(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Rows of both, side by side."""
        if self.rows is None:
            yield from _in_step(self.then, self.now, COLUMNS)
            return
        before, after = (
            _as_delivered(pq.read_table(path, columns=_held(path, COLUMNS))) for path in (self.then, self.now)
        )
        for start in range(0, len(self.rows[0]), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            yield before.take(self.rows[0][part]), after.take(self.rows[1][part])


def _in_step(then: Path, now: Path, names: Sequence[str]) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Rows of two files of one length, the first with the first and so on. Batches do not follow row groups."""
    with pq.ParquetFile(then) as one, pq.ParquetFile(now) as other:
        files = ((one, _held(then, names)), (other, _held(now, names)))
        batches = (file.iter_batches(ROWS_AT_ONCE, columns=columns) for file, columns in files)
        for pair in zip(*batches, strict=True):
            first, second = (_as_delivered(pa.Table.from_batches([batch])) for batch in pair)
            yield first, second


def _as_delivered(table: pa.Table) -> pa.Table:
    """With the types that delivery wrote: whoever reads a file and writes it again, as pandas does, may change them."""
    return table.cast(pa.schema([OUTPUTS_SCHEMA.field(name).with_nullable(True) for name in table.column_names]))


def _keys(table: pa.Table) -> pa.Array:
    """What tells an output from others: id and number of the sample."""
    samples = pc.cast(samples_of(table), pa.string())
    return pc.binary_join_element_wise(table["id"].combine_chunks(), samples, "\x1f")


def samples_of(table: pa.Table) -> pa.Array:
    """The number of each row's sample; 0 in a file of before there were several."""
    if "sample" in table.column_names:
        return table["sample"].combine_chunks()
    return pa.array(np.zeros(len(table), np.int32))


def refuse_other_rows(path: Path) -> None:
    """Raise pa.ArrowException if a file holds no rows that could be compared, from its schema alone."""
    schema = pq.read_schema(path)
    if missing := [name for name in COMPARED if name not in schema.names]:
        raise pa.ArrowInvalid(f"it has no column {', '.join(missing)}")
    _as_delivered(schema.empty_table().select(_held(path, COLUMNS)))


def _held(path: Path, names: Sequence[str]) -> list[str]:
    """Those of the columns that a file has."""
    held = pq.read_schema(path).names
    return [name for name in names if name in held]


def _count(path: Path) -> int:
    return int(pq.read_metadata(path).num_rows)
