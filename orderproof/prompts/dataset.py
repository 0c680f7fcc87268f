"""Prompt files: read, stream and hash.

In: a .jsonl or .parquet file. Out: `Prompt` values in the file's order, or a `PromptError` that names file, line and
id. Knows nothing of orders, engines or expectations.

JSON is parsed by the standard library: it names the column of a mistake, and reading is not what a batch waits for.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orderproof.job.hashing import md5_of
from orderproof.prompts import openai_batch
from orderproof.prompts.request_defaults import Serving
from orderproof.prompts.rows import (
    FIELDS,
    Prompt,
    PromptError,
    fields_of,
    kind_of,
    prompt_of,
    refuse_misspelt,
    row_word,
)
from orderproof.prompts.tail_lines import BYTE_ORDER_MARK, LINE_LIMIT_BYTES
from orderproof.prompts.tokenization import TokenizedPrompts, tokenize

__all__ = [
    "OneForm",
    "Prompt",
    "PromptError",
    "Serving",
    "TokenizedPrompts",
    "dataset_md5",
    "distinct",
    "json_lines",
    "prompt_of_line",
    "prompt_of_record",
    "read_prompts",
    "refuse_unusable",
    "tokenize",
]

PARQUET_BATCH_ROWS = 1024

Rows = Iterator[tuple[int, Any]]
Decode = Callable[[Path, int, Any], Mapping[str, Any]]


def read_prompts(
    path: Path, flawed: Callable[[PromptError], None] | None = None, serving: Serving | None = None
) -> Iterator[Prompt]:
    """Stream the prompts of a file in constant memory, in the file's order.

    Ids are not compared here, since that needs them all in memory: see `distinct`. Integers are accepted as ids, labels
    and references in their decimal text. Fields other than FIELDS are left out, unless they look like a misspelt one.

    Args:
        path: a .jsonl file (UTF-8, with or without a byte order mark, LF or CRLF; plain rows, or those of OpenAI's
            batch format) or a .parquet file.
        flawed: is told each flaw of a row, or that there are no rows, and reading goes on; by default the first raises.
        serving: what the job serves, by which rows are resolved; None: outside of a job.

    Raises:
        PromptError: at once if the file cannot be opened, later if it or a row cannot be read.
    """
    rows, decode = _FORMATS[_checked_suffix(path)]
    return _prompts(path, rows(path), decode, flawed or _raise, serving)


def distinct(prompts: Iterable[Prompt], path: Path) -> Iterator[Prompt]:
    """Pass prompts on. Holds every id seen; raises PromptError at the second use of one."""
    seen: dict[str, int] = {}
    for prompt in prompts:
        first = seen.setdefault(prompt.id, prompt.line)
        if first != prompt.line:
            problem = f"this id stands already on {row_word(path)} {first}"
            raise PromptError(path, problem, "Give every prompt its own id", row=prompt.line, id=prompt.id, flaw="id")
        yield prompt


def dataset_md5(path: Path) -> str:
    """The hash by which DVC knows the file."""
    return md5_of(path)


def refuse_unusable(path: Path) -> None:
    """Raise PromptError for what is no prompts file by its name, or is not there."""
    _checked_suffix(path)


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
    return suffix


def _raise(error: PromptError) -> None:
    raise error


def _prompts(
    path: Path, rows: Rows, decode: Decode, flawed: Callable[[PromptError], None], serving: Serving | None
) -> Iterator[Prompt]:
    number, form = 0, OneForm(path)
    for number, raw in rows:
        try:
            prompt = form(prompt_of_record(path, number, decode(path, number, raw), serving))
        except PromptError as error:
            flawed(error)
        else:
            yield prompt
    if not number:
        empty = "is empty" if not path.stat().st_size else "holds no prompts, only blank lines or an empty table"
        flawed(PromptError(path, empty, 'Give at least one prompt, such as {"id": "a", "text": "…"}', flaw="file"))


# JSON lines


def json_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset in bytes and bytes of each line, blank ones left out.

    Lines are split at b"\\n" alone: U+2028 may stand inside a string. Raises PromptError if the file cannot be read.
    """
    try:
        with open(path, "rb") as source:
            mark = len(BYTE_ORDER_MARK)
            offset = mark if source.read(mark) == BYTE_ORDER_MARK else 0
            source.seek(offset)
            for number, line in enumerate(iter(lambda: source.readline(LINE_LIMIT_BYTES), b""), 1):
                if len(line) == LINE_LIMIT_BYTES:
                    problem = f"is longer than {LINE_LIMIT_BYTES >> 20} MiB"
                    raise PromptError(path, problem, "JSON lines hold one object per line", row=number, flaw="file")
                if not line.isspace():
                    yield number, offset, line
                offset += len(line)
    except OSError as error:
        raise PromptError(path, f"cannot be read: {error.strerror}", "Check the file", flaw="file") from None


def _json_rows(path: Path) -> Rows:
    return ((number, line) for number, _, line in json_lines(path))


def prompt_of_line(path: Path, number: int, line: bytes, serving: Serving | None = None) -> Prompt:
    """One line of JSON lines → its prompt. Raises PromptError at the first thing wrong."""
    return prompt_of_record(path, number, _decode_json(path, number, line), serving)


def prompt_of_record(path: Path, number: int, record: Mapping[str, Any], serving: Serving | None = None) -> Prompt:
    """A row of either form → its prompt. Raises PromptError at the first thing wrong."""
    made = openai_batch.prompt_of if openai_batch.is_request(record) else prompt_of
    return made(path, number, record, serving)


class OneForm:
    """Passes a file's prompts on. Raises PromptError at the first row of another form than the first one's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first: Prompt | None = None

    def __call__(self, prompt: Prompt) -> Prompt:
        self.first = self.first or prompt
        if (prompt.endpoint is None) != (self.first.endpoint is None):
            one, other = ("batch", "plain") if self.first.endpoint else ("plain", "batch")
            problem = f"is a {other} row, and {row_word(self.path)} {self.first.line} is a {one} one"
            raise PromptError(self.path, problem, "Keep them in two files", row=prompt.line, id=prompt.id)
        return prompt


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)
_CUT_OFF = "the last line is cut off: no newline ends it and its JSON is unfinished", "Write the file again"


def _decode_json(path: Path, number: int, line: bytes) -> Mapping[str, Any]:
    fail = functools.partial(PromptError, path, row=number)
    whole = line.endswith(b"\n")
    try:
        text = line.decode().strip()
        record = _JSON.decode(text)
    except UnicodeDecodeError as error:
        if not whole and error.reason == "unexpected end of data":
            raise fail(*_CUT_OFF) from None
        encoding = "utf-16" if line[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin1"
        problem = f"byte 0x{line[error.start]:02x}, {error.start + 1} bytes into the line, is not UTF-8"
        raise fail(problem, f"Convert the file, perhaps with: iconv -f {encoding} -t utf-8 IN > OUT") from None
    except json.JSONDecodeError as error:
        # a cut that went through an escape or literal is reported where that begins, up to five characters earlier
        if not whole and (error.msg.startswith("Unterminated") or error.pos >= len(text) - 5):
            raise fail(*_CUT_OFF) from None
        raise fail(f"is not JSON: {error.msg}, at column {error.pos + 1}", _json_remedy(text)) from None
    except (ValueError, RecursionError) as error:  # NaN, numbers of thousands of digits, nesting without end
        raise fail(f"is not usable JSON: {error}", "Correct the line") from None
    if not isinstance(record, dict):
        raise fail(f"holds {kind_of(record)} instead of an object", _json_remedy(text))
    return record


def _json_remedy(text: str) -> str:
    if text.startswith("["):
        return "JSON lines hold one object per line; from an array: jq -c '.[]' IN > OUT"
    return 'Write one object per line, such as {"id": "a", "text": "…"}'


# Parquet


def _parquet_rows(path: Path) -> Rows:
    number = 0
    try:
        with pq.ParquetFile(path, buffer_size=1 << 20) as source:
            names = source.schema_arrow.names
            fail = functools.partial(PromptError, path, flaw="file")
            refuse_misspelt(names, fail)
            for name in ("id", "text"):
                if name not in names:
                    raise fail(f"has no column `{name}`{fields_of(names)}", "Rename or add the column")
            known = [name for name in names if name in FIELDS]
            for batch in source.iter_batches(PARQUET_BATCH_ROWS, columns=known):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        problem = f"is not readable as Parquet after row {number}: {' '.join(str(error).split())}"
        raise PromptError(path, problem, "Write the file again", flaw="file") from None


def _decode_parquet(path: Path, number: int, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A struct's absent members are null in Parquet: leave them out."""
    sampling, text = record.get("sampling"), record.get("text")
    if isinstance(sampling, dict):
        record = {**record, "sampling": _without_nulls(sampling) or None}
    if isinstance(text, list):
        record = {**record, "text": [_without_nulls(m) if isinstance(m, dict) else m for m in text]}
    return record


def _without_nulls(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value is not None}


_FORMATS: dict[str, tuple[Callable[[Path], Rows], Decode]] = {
    ".jsonl": (_json_rows, _decode_json),
    ".parquet": (_parquet_rows, _decode_parquet),
}
