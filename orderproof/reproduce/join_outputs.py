"""Join the rows of two files of outputs by `id` and, for prompts with several outputs, `sample`.

Files in the same order are read a few thousand rows at a time; otherwise all compared columns of both are in memory.
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
REQUIRED = ("id", "text", "token_ids", "finish_reason")  # in every file of outputs
COLUMNS = (*REQUIRED, "sample")


@dataclass(frozen=True)
class JoinedOutputs:
    """Which rows of two files belong together."""

    then: Path
    now: Path
    rows: tuple[Int64, Int64] | None  # row numbers in each file; None: row i belongs to row i
    only_then: int = 0
    only_now: int = 0

    def pairs(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Tables of both files; row i of each is the same output."""
        if self.rows is None:
            yield from _read_row_by_row(self.then, self.now, COLUMNS)
            return
        before, after = (
            _as_delivered(pq.read_table(path, columns=_present(path, COLUMNS))) for path in (self.then, self.now)
        )
        for start in range(0, len(self.rows[0]), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            yield before.take(self.rows[0][part]), after.take(self.rows[1][part])


def join_outputs(then: Path, now: Path) -> JoinedOutputs:
    """Find the rows of two files that belong together."""
    tables = _read_row_by_row(then, now, KEYS)
    if _count(then) == _count(now) and all(_keys(before).equals(_keys(after)) for before, after in tables):
        return JoinedOutputs(then, now, None)
    before, after = (_keys(_as_delivered(pq.read_table(path, columns=_present(path, KEYS)))) for path in (then, now))
    matches = pc.index_in(before, value_set=after)
    rows_then = np.flatnonzero(pc.is_valid(matches).to_numpy(zero_copy_only=False))
    rows_now = pc.drop_null(matches).to_numpy().astype(np.int64)
    only_then, only_now = len(before) - len(rows_then), len(after) - len(rows_now)
    return JoinedOutputs(then, now, (rows_then, rows_now), only_then, only_now)


def _read_row_by_row(then: Path, now: Path, names: Sequence[str]) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Rows of two files of the same length: row i with row i. Batches do not follow row groups."""
    with pq.ParquetFile(then) as before, pq.ParquetFile(now) as after:
        files = ((before, _present(then, names)), (after, _present(now, names)))
        batches = (file.iter_batches(ROWS_AT_ONCE, columns=columns) for file, columns in files)
        for pair in zip(*batches, strict=True):
            first, second = (_as_delivered(pa.Table.from_batches([batch])) for batch in pair)
            yield first, second


def _as_delivered(table: pa.Table) -> pa.Table:
    """Cast to the column types of a delivered file, which another program such as pandas may have changed."""
    return table.cast(pa.schema([OUTPUTS_SCHEMA.field(name).with_nullable(True) for name in table.column_names]))


def _keys(table: pa.Table) -> pa.Array:
    """The unique key of an output: id and number of the sample."""
    samples = pc.cast(samples_of(table), pa.string())
    return pc.binary_join_element_wise(table["id"].combine_chunks(), samples, "\x1f")


def samples_of(table: pa.Table) -> pa.Array:
    """The number of each row's sample; 0 in a file without this column."""
    if "sample" in table.column_names:
        return table["sample"].combine_chunks()
    return pa.array(np.zeros(len(table), np.int32))


def refuse_unusable_columns(path: Path) -> None:
    """Raise pa.ArrowException if the columns of a file cannot be compared. Reads only its schema."""
    schema = pq.read_schema(path)
    if missing := [name for name in REQUIRED if name not in schema.names]:
        raise pa.ArrowInvalid(f"it has no column {', '.join(missing)}")
    _as_delivered(schema.empty_table().select(_present(path, COLUMNS)))


def _present(path: Path, names: Sequence[str]) -> list[str]:
    """Those of these columns that a file has."""
    present = pq.read_schema(path).names
    return [name for name in names if name in present]


def _count(path: Path) -> int:
    return int(pq.read_metadata(path).num_rows)
