"""Rows of files that any tool wrote: JSON lines or Parquet, each row with an id; written again in any order, unchanged.

Of JSON lines only ids, labels and offsets are held, so that a million rows are fine; a row's bytes are copied from the
disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import stat
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq

from orderproof.job.errors import OrderproofError
from orderproof.prompts.json_lines import BYTE_ORDER_MARK, EXAMPLE, Fail, parse_object, read_lines
from orderproof.prompts.prompt import check_id, list_fields
from orderproof.prompts.tail_lines import STANDARD_STREAM

ID_FIELDS = ("id", "custom_id")  # ours, and that of OpenAI's batch format
BATCH_FIELDS = frozenset({"body", "response"})  # of that format's requests and responses
PARQUET_MAGIC = b"PAR1"
COMPRESSED_MAGIC = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # gzip, zstd
PARQUET_BATCH_ROWS = 1 << 16


class RowError(OrderproofError):
    """A file or row that cannot be used: where, why, and what to do."""


class Rows(Protocol):
    """N rows in the file's order."""

    @property
    def name(self) -> str:
        """The file's name, for messages."""
        ...

    @property
    def suffix(self) -> str:
        """The suffix of files of this kind."""
        ...

    @property
    def ids(self) -> Sequence[str]: ...

    @property
    def labels(self) -> Sequence[str | None]: ...

    @property
    def numbers(self) -> Sequence[int]:
        """Line or row in the file, from 1."""
        ...

    def record(self, i: int) -> Mapping[str, Any]:
        """Row i, read and parsed again."""
        ...

    def md5(self) -> str:
        """The md5 of the file."""
        ...

    def write(self, permutation: Sequence[int], sink: IO[bytes]) -> None:
        """The k-th row written is row permutation[k]."""
        ...


@contextlib.contextmanager
def open_source(source: str | Path) -> Iterator[tuple[str, io.BufferedReader]]:
    """A file's name for messages, and its bytes. Raises RowError if it cannot be read."""
    if str(source) == STANDARD_STREAM:
        if sys.stdin is None:  # as after `<&-` in a shell
            raise RowError("standard input: is closed. Give a pipe or a file")
        yield "standard input", cast(io.BufferedReader, sys.stdin.buffer)
        return
    try:
        file = open(source, "rb")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise RowError(f"{source}: cannot be read: {error.strerror}. Check the path") from None
    with file:
        yield str(source), file


@contextlib.contextmanager
def open_rows(source: str | Path) -> Iterator[Rows]:
    """Read a file's rows; see `rows_in`."""
    with open_source(source) as (name, file), rows_in(name, file) as rows:
        yield rows


@contextlib.contextmanager
def rows_in(name: str, opened: BinaryIO) -> Iterator[Rows]:
    """The rows of an opened file. A pipe, which cannot be read twice, is spooled first.

    Raises:
        RowError: it cannot be read, holds no rows, or a row has no id.
    """
    with contextlib.ExitStack() as stack:
        file = opened
        if (sys.stdin and opened is sys.stdin.buffer) or not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            file = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(opened, file)
        file.seek(0)
        begins = file.read(len(PARQUET_MAGIC))
        if begins.startswith(COMPRESSED_MAGIC):
            raise RowError(f"{name}: is compressed. Give its content, as in: zcat IN | orderproof order - -o OUT")
        kind = _Parquet if begins == PARQUET_MAGIC else _JsonLines
        rows: Rows = kind(name, file)
        if not rows.ids:
            raise _no_rows(name)
        yield rows


@dataclass(frozen=True)
class Row:
    """A line of the file, unchanged."""

    number: int  # in the file, from 1
    line: bytes  # with its newline, without a byte order mark
    record: Mapping[str, Any]
    id: str
    label: str | None

    @property
    def whole_line(self) -> bytes:
        """With a newline: a last line may lack it, and may move to another place."""
        return self.line if self.line.endswith(b"\n") else self.line + b"\n"


def may_stream(file: io.BufferedReader) -> bool:
    """Whether rows can be read as a stream: Parquet keeps its index at the end."""
    return not PARQUET_MAGIC.startswith(file.peek(1)[:1] or b" ")


def stream_rows(name: str, file: BinaryIO, hashed: Callable[[bytes], object]) -> Iterator[Row]:
    """Stream the rows of JSON lines, one in memory at a time. `hashed` gets every byte.

    Raises:
        RowError: there are no rows, a row is not an object, or it has no id.
    """
    number = 0

    def readline(limit: int) -> bytes:
        line = file.readline(limit)
        hashed(line)
        return line

    for number, _, line in read_lines(readline, lambda number: _fail_at(name, "line", number)):
        fail = _fail_at(name, "line", number)
        record = parse_object(line, fail, nan=True)
        yield Row(number, line, record, _id_of(record, fail), _label_of(record))
    if not number:
        raise _no_rows(name)


class _JsonLines:
    suffix = ".jsonl"

    def __init__(self, name: str, file: BinaryIO):
        self.name, self._file = name, file
        self.ids: list[str] = []
        self.labels: list[str | None] = []
        self.numbers: array[int] = array("q")
        self._starts: array[int] = array("q")
        self._lengths: array[int] = array("q")
        self._newline = b"\n"
        file.seek(0)
        self._mark = BYTE_ORDER_MARK if file.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK else b""
        file.seek(0)
        for number, start, line in read_lines(file.readline, self._fail_at):
            fail = self._fail_at(number)
            record = parse_object(line, fail, nan=True)
            self.ids.append(_id_of(record, fail))
            self.labels.append(_label_of(record))
            self.numbers.append(number)
            self._starts.append(start)
            self._lengths.append(len(line))
            if line.endswith(b"\r\n"):
                self._newline = b"\r\n"

    def record(self, i: int) -> dict[str, Any]:
        return parse_object(self._bytes(i), self._fail_at(self.numbers[i]), nan=True)

    def md5(self) -> str:
        return _md5(self._file)

    def write(self, permutation: Sequence[int], sink: IO[bytes]) -> None:
        """The byte order mark stays at the beginning; a last line without a newline gets one: it may move."""
        sink.write(self._mark)
        for i in permutation:
            line = self._bytes(i)
            sink.write(line if line.endswith(b"\n") else line + self._newline)

    def _fail_at(self, number: int) -> Fail:
        return _fail_at(self.name, "line", number)

    def _bytes(self, i: int) -> bytes:
        return os.pread(self._file.fileno(), self._lengths[i], self._starts[i])


class _Parquet:
    suffix = ".parquet"

    def __init__(self, name: str, file: BinaryIO):
        self.name, self._file = name, file
        try:
            self._table = pq.read_table(file)
        except (OSError, pa.ArrowException) as error:
            raise RowError(f"{name}: not readable as Parquet: {' '.join(str(error).split())}. Write it again") from None
        columns = [column for column in (*ID_FIELDS, "label") if column in self._table.column_names]
        records = self._table.select(columns).to_pylist()
        self.numbers = range(1, len(records) + 1)
        self.ids = [_id_of(record, _fail_at(name, "row", number)) for number, record in enumerate(records, 1)]
        self.labels = [_label_of(record) for record in records]

    def record(self, i: int) -> dict[str, Any]:
        row: dict[str, Any] = self._table.slice(i, 1).to_pylist()[0]
        return row

    def md5(self) -> str:
        return _md5(self._file)

    def write(self, permutation: Sequence[int], sink: IO[bytes]) -> None:
        with pq.ParquetWriter(sink, self._table.schema, compression="zstd") as writer:
            for start in range(0, len(permutation), PARQUET_BATCH_ROWS):
                writer.write_table(self._table.take(pa.array(permutation[start : start + PARQUET_BATCH_ROWS])))


def _fail_at(name: str, word: str, number: int) -> Fail:
    """What makes the errors about one row."""
    return lambda problem, remedy, **_: RowError(f"{name}, {word} {number}: {problem}. {remedy}")


def _no_rows(name: str) -> RowError:
    return RowError(f"{name}: holds no rows. Give at least one, such as {EXAMPLE}")


def _md5(file: BinaryIO) -> str:
    file.seek(0)
    digest = hashlib.md5(usedforsecurity=False)
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


def _id_of(record: Mapping[str, Any], fail: Fail) -> str:
    is_batch = "custom_id" in record and not BATCH_FIELDS.isdisjoint(record)
    fields = reversed(ID_FIELDS) if is_batch else ID_FIELDS  # a response of run-batch has an `id` of its own
    field = next((field for field in fields if record.get(field) is not None), None)
    if field is None:
        raise fail(f"has no `id` or `custom_id`{list_fields(record)}", "Give every row its own id")
    return check_id(record, field, fail)


def _label_of(record: Mapping[str, Any]) -> str | None:
    label = record.get("label")
    return None if label is None else sys.intern(str(label))  # few distinct ones, each held once
