"""Prompt files: .jsonl or .parquet → `Prompt` values in the file's order, streamed.

JSON is parsed by the standard library: it names the column of a mistake, and reading is never what a job waits for.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orderproof.job.lfs import POINTER_PROBLEM, POINTER_REMEDY, is_pointer
from orderproof.prompts import openai_batch
from orderproof.prompts.json_lines import EXAMPLE, read_lines
from orderproof.prompts.prompt import Prompt, PromptError, list_fields
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.row_reader import RowReader

PARQUET_BATCH_ROWS = 1024

# A file and its reader → the prompt of each row, or what is wrong with the row.
Rows = Callable[[Path, RowReader], Iterator[Prompt | PromptError]]


def read_prompts(
    path: Path,
    on_flaw: Callable[[PromptError], None] | None = None,
    defaults: RequestDefaults | None = None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> Iterator[Prompt]:
    """Stream the prompts of a file in constant memory, in the file's order.

    Ids are not compared, since that needs them all in memory. Integers are accepted as ids, labels and references in
    their decimal text. Columns that are no field of a prompt are left out.

    Args:
        path: a .jsonl file (UTF-8, with or without a byte order mark, LF or CRLF; plain rows, or those of OpenAI's
            batch format) or a .parquet file.
        on_flaw: gets each flaw of a row, or that there are no rows, and reading goes on; by default the first raises.
        defaults: of the job; None: the rows belong to no job.
        on_notice: gets, at the end, what should be known about rows that are used, such as columns that are not read.

    Raises:
        PromptError: at once if the file cannot be opened, later if it or a row cannot be read.
    """
    rows = _FORMATS[_checked_suffix(path)]
    return _prompts(path, rows, RowReader(path, defaults), on_flaw or _raise, on_notice)


def check_prompt_file(path: Path) -> None:
    """Raise PromptError for a path that is no prompts file by its name, is not there, or is a Git LFS pointer."""
    _checked_suffix(path)


def json_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset in bytes and bytes of each line that is not blank. Raises PromptError if it cannot be read."""
    try:
        with open(path, "rb") as source:
            yield from read_lines(
                source.readline, lambda number: functools.partial(PromptError, path, row=number, flaw="file")
            )
    except OSError as error:
        raise PromptError(path, f"cannot be read: {error.strerror}", "Check the file", flaw="file") from None


def _checked_suffix(path: Path) -> str:
    if not os.path.lexists(path):
        raise PromptError(path, "does not exist", "Check the path of the prompts", flaw="file")
    if not os.path.isfile(path):
        problem = "is a folder, not a file" if os.path.isdir(path) else "is not a file, or cannot be reached"
        raise PromptError(path, problem, "Name one .jsonl or .parquet file", flaw="file")
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        remedy = "Give JSON lines, one object per line, named .jsonl, or Parquet named .parquet"
        raise PromptError(path, f"is of an unknown kind ({suffix or 'no extension'})", remedy, flaw="file")
    if is_pointer(path):
        raise PromptError(path, POINTER_PROBLEM, POINTER_REMEDY, flaw="file")
    return suffix


def _raise(error: PromptError) -> None:
    raise error


def _prompts(
    path: Path,
    rows: Rows,
    reader: RowReader,
    on_flaw: Callable[[PromptError], None],
    on_notice: Callable[[str], None],
) -> Iterator[Prompt]:
    empty = True
    for prompt in rows(path, reader):
        empty = False
        if isinstance(prompt, PromptError):
            on_flaw(prompt)
        else:
            yield prompt
    if empty:
        problem = "is empty" if not path.stat().st_size else "holds no prompts, only blank lines or an empty table"
        on_flaw(PromptError(path, problem, f"Give at least one prompt, such as {EXAMPLE}", flaw="file"))
    for line in reader.notices.lines(path):
        on_notice(line)


def _json_rows(path: Path, reader: RowReader) -> Iterator[Prompt | PromptError]:
    for number, _, line in json_lines(path):
        try:
            yield reader.read_line(number, line)
        except PromptError as flaw:
            yield flaw


def _parquet_rows(path: Path, reader: RowReader) -> Iterator[Prompt | PromptError]:
    number = 0
    try:
        with pq.ParquetFile(path, buffer_size=1 << 20) as source:
            names = source.schema_arrow.names
            columns = [name for name in names if name in _needed_columns(path, names, reader)]
            for batch in source.iter_batches(PARQUET_BATCH_ROWS, columns=columns):
                for record in batch.to_pylist(maps_as_pydicts="strict"):
                    number += 1
                    try:
                        yield reader.read(number, _without_absent_members(record), names)
                    except PromptError as flaw:
                        yield flaw
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:  # KeyError: a map repeats a key
        problem = f"is not readable as Parquet after row {number}: {' '.join(str(error).split())}"
        raise PromptError(path, problem, "Write the file again", flaw="file") from None


def _needed_columns(path: Path, names: list[str], reader: RowReader) -> tuple[str, ...]:
    """Raises PromptError if the file cannot have prompts, whatever is in its rows."""
    if reader.is_batch(names):
        return (*openai_batch.FIELDS, *reader.layout(names).columns)
    layout = reader.layout(names)
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


_FORMATS: dict[str, Rows] = {".jsonl": _json_rows, ".parquet": _parquet_rows}
