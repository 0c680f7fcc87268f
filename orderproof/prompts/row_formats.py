"""The rows of one file in each of the formats, streamed in constant memory → prompts.

JSON is parsed by the standard library: it names the column of a mistake, and reading is never what a job waits for.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orderproof.prompts import openai_batch
from orderproof.prompts.file_kinds import is_compressed, open_content
from orderproof.prompts.json_array import read_array
from orderproof.prompts.json_lines import LINE_LIMIT_BYTES, read_lines
from orderproof.prompts.prompt import Prompt, PromptError, list_fields
from orderproof.prompts.row_reader import RowReader

PARQUET_BATCH_ROWS = 1024

Rows = Iterator[Prompt | PromptError]  # the prompt of each row, or what is wrong with the row


def json_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset in bytes and bytes of each line that is not blank. Raises PromptError if it cannot be read."""
    with _readable(path), open_content(path) as source:
        yield from read_lines(
            source.readline, lambda number: functools.partial(PromptError, path, row=number, flaw="file")
        )


def _json_lines_rows(path: Path, reader: RowReader) -> Rows:
    for number, _, line in json_lines(path):
        try:
            yield reader.read_line(number, line)
        except PromptError as flaw:
            yield flaw


def _json_rows(path: Path, reader: RowReader) -> Rows:
    """An array of objects; many tools also give this suffix to JSON lines."""
    with _readable(path), _open_text(path) as text:
        begins = text.read(1 << 10).lstrip()
    if begins[:1] != "[":
        yield from _json_lines_rows(path, reader)
        return
    with _readable(path), _open_text(path) as text:
        for number, item in read_array(text.read, functools.partial(PromptError, path, flaw="file")):
            yield _read(reader, number, item)


def _csv_rows(path: Path, reader: RowReader) -> Rows:
    """Every value is text, and an empty one is absent; `sampling` is JSON text."""
    csv.field_size_limit(LINE_LIMIT_BYTES)
    with _readable(path), _open_text(path) as text:
        table = csv.DictReader(text, strict=True)
        for number, cells in enumerate(table, 1):
            yield _read_cells(path, reader, number, cells)


def _read_cells(path: Path, reader: RowReader, number: int, cells: dict[str, Any]) -> Prompt | PromptError:
    if None in cells or None in cells.values():
        problem = f"has {'more' if None in cells else 'fewer'} fields than the first line"
        return PromptError(
            path, problem, "Put text with commas or line ends in double quotes", row=reader.place(number)
        )
    record: dict[str, Any] = {name: value or None for name, value in cells.items()}
    if record.get("sampling"):
        with contextlib.suppress(ValueError):  # what is no JSON is refused as no object
            record["sampling"] = json.loads(record["sampling"])
    return _read(reader, number, record)


def _parquet_rows(path: Path, reader: RowReader) -> Rows:
    number = 0
    try:
        with pq.ParquetFile(path, buffer_size=1 << 20) as source:
            names = source.schema_arrow.names
            needed = _needed_columns(path, names, reader)
            for batch in source.iter_batches(PARQUET_BATCH_ROWS, columns=[name for name in names if name in needed]):
                for record in batch.to_pylist(maps_as_pydicts="strict"):
                    number += 1
                    yield _read(reader, number, _without_absent_members(record), names)
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:  # KeyError: a map repeats a key
        problem = f"is not readable as Parquet after row {number}: {' '.join(str(error).split())}"
        raise PromptError(path, problem, "Write the file again", flaw="file") from None


def _needed_columns(path: Path, names: list[str], reader: RowReader) -> tuple[str, ...]:
    """Raises PromptError if the file cannot have prompts, whatever is in its rows."""
    layout = reader.layout(names)
    if reader.is_batch(names):
        return (*openai_batch.FIELDS, *layout.columns)
    for name in (layout.id, layout.text):
        if name and name not in names:
            problem = f"has no column `{name}`{list_fields(names)}"
            raise PromptError(
                path, problem, "Rename or add the column, or name it in `columns` of the job", flaw="file"
            )
    return layout.columns


def _without_absent_members(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A struct has the members of all rows, and null for those that a row lacks: they are left out at every depth."""
    return {name: _without_null_members(value) for name, value in record.items()}


def _without_null_members(value: Any) -> Any:
    """Nulls in lists are kept: they are items like others."""
    if isinstance(value, dict):
        return {key: _without_null_members(member) for key, member in value.items() if member is not None}
    return [_without_null_members(item) for item in value] if isinstance(value, list) else value


def _read(
    reader: RowReader, number: int, record: Mapping[str, Any], names: list[str] | None = None
) -> Prompt | PromptError:
    try:
        return reader.read(number, record, names)
    except PromptError as flaw:
        return flaw


def _open_text(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(open_content(path), encoding="utf-8-sig", newline="")


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what reading raises into a PromptError about the file."""
    fail = functools.partial(PromptError, path, flaw="file")
    try:
        yield
    except UnicodeDecodeError as error:
        problem = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise fail(problem, "Convert the file, perhaps with: iconv -f latin1 -t utf-8 IN > OUT") from None
    except csv.Error as error:
        raise fail(f"is not readable as CSV: {error}", "Put text with commas or line ends in double quotes") from None
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or str(error)
        remedy = "Compress or copy it again" if is_compressed(path) else "Check the file"
        raise fail(f"cannot be read: {why}", remedy) from None


FORMATS: dict[str, Callable[[Path, RowReader], Rows]] = {
    ".jsonl": _json_lines_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
}
