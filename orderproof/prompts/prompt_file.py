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
from orderproof.prompts.json_lines import EXAMPLE, parse_object, read_lines
from orderproof.prompts.prompt import (
    FIELDS,
    Prompt,
    PromptError,
    check_field_names,
    list_fields,
    prompt_of,
    row_word,
)
from orderproof.prompts.request_defaults import RequestDefaults

PARQUET_BATCH_ROWS = 1024

Rows = Iterator[tuple[int, Any]]
Decode = Callable[[Path, int, Any], Mapping[str, Any]]


def read_prompts(
    path: Path, on_flaw: Callable[[PromptError], None] | None = None, defaults: RequestDefaults | None = None
) -> Iterator[Prompt]:
    """Stream the prompts of a file in constant memory, in the file's order.

    Ids are not compared, since that needs them all in memory. Integers are accepted as ids, labels and references in
    their decimal text. Fields other than FIELDS are left out, unless they look like a misspelled one.

    Args:
        path: a .jsonl file (UTF-8, with or without a byte order mark, LF or CRLF; plain rows, or those of OpenAI's
            batch format) or a .parquet file.
        on_flaw: gets each flaw of a row, or that there are no rows, and reading goes on; by default the first raises.
        defaults: of the job; None: the rows belong to no job.

    Raises:
        PromptError: at once if the file cannot be opened, later if it or a row cannot be read.
    """
    rows, decode = _FORMATS[_checked_suffix(path)]
    return _prompts(path, rows(path), decode, on_flaw or _raise, defaults)


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


def prompt_of_line(path: Path, number: int, line: bytes, defaults: RequestDefaults | None = None) -> Prompt:
    """One line of JSON lines → its prompt. Raises PromptError at the first thing wrong."""
    return prompt_of_record(path, number, _decode_json(path, number, line), defaults)


def prompt_of_record(
    path: Path, number: int, record: Mapping[str, Any], defaults: RequestDefaults | None = None
) -> Prompt:
    """A row of either format → its prompt. Raises PromptError at the first thing wrong."""
    make = openai_batch.prompt_of if openai_batch.is_request(record) else prompt_of
    return make(path, number, record, defaults)


class FormatCheck:
    """Passes a file's prompts on. Raises PromptError at the first row of another format than the first row's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first: Prompt | None = None

    def __call__(self, prompt: Prompt) -> Prompt:
        self.first = self.first or prompt
        if (prompt.endpoint is None) != (self.first.endpoint is None):
            names = ("plain", "batch") if self.first.endpoint else ("batch", "plain")
            problem = f"is a {names[0]} row, and {row_word(self.path)} {self.first.line} is a {names[1]} row"
            raise PromptError(self.path, problem, "Keep them in two files", row=prompt.line, id=prompt.id)
        return prompt


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
    decode: Decode,
    on_flaw: Callable[[PromptError], None],
    defaults: RequestDefaults | None,
) -> Iterator[Prompt]:
    number, check_format = 0, FormatCheck(path)
    for number, raw in rows:
        try:
            prompt = check_format(prompt_of_record(path, number, decode(path, number, raw), defaults))
        except PromptError as error:
            on_flaw(error)
        else:
            yield prompt
    if not number:
        problem = "is empty" if not path.stat().st_size else "holds no prompts, only blank lines or an empty table"
        on_flaw(PromptError(path, problem, f"Give at least one prompt, such as {EXAMPLE}", flaw="file"))


def _json_rows(path: Path) -> Rows:
    return ((number, line) for number, _, line in json_lines(path))


def _decode_json(path: Path, number: int, line: bytes) -> Mapping[str, Any]:
    return parse_object(line, functools.partial(PromptError, path, row=number))


def _parquet_rows(path: Path) -> Rows:
    number = 0
    try:
        with pq.ParquetFile(path, buffer_size=1 << 20) as source:
            names = source.schema_arrow.names
            fail = functools.partial(PromptError, path, flaw="file")
            check_field_names(names, fail)
            for name in ("id", "text"):
                if name not in names:
                    raise fail(f"has no column `{name}`{list_fields(names)}", "Rename or add the column")
            known = [name for name in names if name in FIELDS]
            for batch in source.iter_batches(PARQUET_BATCH_ROWS, columns=known):
                for record in batch.to_pylist(maps_as_pydicts="strict"):
                    number += 1
                    yield number, record
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:  # KeyError: a map repeats a key
        problem = f"is not readable as Parquet after row {number}: {' '.join(str(error).split())}"
        raise PromptError(path, problem, "Write the file again", flaw="file") from None


def _decode_parquet(path: Path, number: int, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A struct has the members of all rows, and null for those that a row lacks: they are left out at every depth."""
    return {name: _without_null_members(value) for name, value in record.items()}


def _without_null_members(value: Any) -> Any:
    """Nulls in lists are kept: they are items like others."""
    if isinstance(value, dict):
        return {key: _without_null_members(member) for key, member in value.items() if member is not None}
    return [_without_null_members(item) for item in value] if isinstance(value, list) else value


_FORMATS: dict[str, tuple[Callable[[Path], Rows], Decode]] = {
    ".jsonl": (_json_rows, _decode_json),
    ".parquet": (_parquet_rows, _decode_parquet),
}
