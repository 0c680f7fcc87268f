"""Prompts sorted, and outputs put back, for any other tool: `orderproof order` and `orderproof restore`.

In: files of rows (row_files.py), or `-` for the standard streams. Out: the same rows in another order, in a file
that is whole or not there, or window by window in a pipe. Knows nothing of jobs, engines or trials.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from orderproof.job.errors import OrderproofError
from orderproof.job.files import atomic_file
from orderproof.job.spec import OrderSpec
from orderproof.orders.order import Order
from orderproof.orders.registry import make_order
from orderproof.orders.row_text import Reading, reading_of
from orderproof.orders.view import PromptView, on_line
from orderproof.orders.window import Windows
from orderproof.prompts.ids import IdSet, id_key
from orderproof.prompts.json_lines import BYTE_ORDER_MARK
from orderproof.prompts.row_files import Row, Rows, may_stream, open_rows, open_source, rows_in, stream_rows
from orderproof.prompts.tail_lines import STANDARD_STREAM
from orderproof.signals.served_model import UNKNOWN_MODEL, ServedModel

NAMED_IDS = 5  # of each kind, in a message


class ReorderError(OrderproofError):
    """Rows that cannot be sorted or put back: file, line and id, and what to do."""


def reorder_file(
    source: str | Path,
    destination: str | Path,
    spec: OrderSpec,
    *,
    served: ServedModel = UNKNOWN_MODEL,
) -> Order:
    """Write the rows of `source` to `destination` in another order.

    Every row needs an `id` (or `custom_id`) of its own; a `label`, or a text as `reading_of` finds it, where the order
    asks for one. A window of JSON lines is written as soon as it is there, from a pipe to a pipe before the next one is
    read, and 16 bytes a row stay in memory.

    Args:
        served: the model that will answer, for a signal that needs it.

    Raises:
        RowError, ReorderError, OrderError, SignalError: a file at `destination` is then as it was; what went into a
            pipe are the windows before the row to blame.
    """
    if str(source) != STANDARD_STREAM and _same_file(source, destination):
        raise ReorderError(f"{source}: would be overwritten, but outputs are put back by it. Name another file")
    with open_source(source) as (name, file):
        if spec.window and may_stream(file):
            _refuse_other_kind(name, ".jsonl", destination)
            return _reorder_stream(name, file, destination, spec, served)
        with rows_in(name, file) as rows:
            _refuse_other_kind(name, rows.suffix, destination)
            _refuse_doubles(rows)
            order = make_order(spec, _view(rows, served, reading_of(spec, served)), rows.md5())
            _write(rows, order.permutation.tolist(), destination)
            return order


def restore_file(outputs: str | Path, like: str | Path, destination: str | Path) -> int:
    """Write the rows of `outputs` to `destination` in the order in which `like` has their ids.

    Returns:
        How many rows.

    Raises:
        RowError, ReorderError: ids missing, given twice or unknown are named; `destination` is then as it was.
    """
    if str(outputs) == str(like) == STANDARD_STREAM:
        raise ReorderError("only one of the two files can come from the standard input. Name the other")
    with open_rows(like) as wanted, open_rows(outputs) as rows:
        _refuse_other_kind(rows.name, rows.suffix, destination)
        if _same_file(like, destination):
            raise ReorderError(f"{like}: the prompts would be overwritten by outputs. Name another destination")
        _refuse_doubles(wanted)
        _write(rows, _places(wanted, rows), destination)
        return len(wanted.ids)


def _view(rows: Rows, served: ServedModel, reading: Reading) -> PromptView:
    def text(i: int) -> str:
        return reading(rows.record(i), on_line(rows.name, rows.numbers[i], rows.ids[i]))

    return PromptView(rows.ids, rows.labels, text, rows.numbers, source=rows.name, served=served)


def _places(wanted: Rows, given: Rows) -> list[int]:
    """For each wanted id its row among the given ones."""
    place: dict[str, int] = {}
    twice = [(id, i, place[id]) for i, id in enumerate(given.ids) if place.setdefault(id, i) != i]
    known = set(wanted.ids)
    flaws = {
        "missing": [id for id in wanted.ids if id not in place],
        "given twice": [f"{id} on {given.numbers[first]} and {given.numbers[i]}" for id, i, first in twice],
        "unknown": [id for id in place if id not in known],
    }
    found = [f"{len(ids)} {flaw} ({_some(ids)})" for flaw, ids in flaws.items() if ids]
    if found:
        raise ReorderError(
            f"{given.name}: its ids are not those of {wanted.name}: {'; '.join(found)}. Nothing was written: "
            "every prompt needs exactly one row"
        )
    return [place[id] for id in wanted.ids]


def _some(ids: Sequence[str]) -> str:
    more = ["…"] if len(ids) > NAMED_IDS else []
    return ", ".join([*ids[:NAMED_IDS], *more])


def _refuse_doubles(rows: Rows) -> None:
    first: dict[str, int] = {}
    for i, id in enumerate(rows.ids):
        if first.setdefault(id, i) != i:
            raise ReorderError(
                f"{rows.name}: id {id!r} on {rows.numbers[i]} stands already on {rows.numbers[first[id]]}, so outputs "
                "could not be put back. Give every row its own id"
            )


def _refuse_other_kind(name: str, suffix: str, destination: str | Path) -> None:
    if Path(destination).suffix.lower() in {".jsonl", ".parquet"} - {suffix}:
        raise ReorderError(
            f"{destination}: rows are written as they are read, and {name} holds {suffix[1:]}. Name a {suffix} file"
        )


def _same_file(source: str | Path, destination: str | Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samefile(source, destination)
    return False


def _reorder_stream(
    name: str, file: io.BufferedReader, destination: str | Path, spec: OrderSpec, served: ServedModel
) -> Order:
    """Window by window, each written before the next one is read."""
    assert spec.window is not None
    windows, sent, md5 = Windows(spec), array("q"), hashlib.md5(usedforsecurity=False)
    rows, reading = _distinct(name, stream_rows(name, file, md5.update)), reading_of(spec, served)
    mark = BYTE_ORDER_MARK if file.peek(3).startswith(BYTE_ORDER_MARK) else b""
    with _opened(destination) as sink:
        sink.write(mark)
        while window := list(itertools.islice(rows, spec.window)):
            order = windows.add(_view_of_window(name, window, served, reading)).tolist()
            sink.writelines(window[k].whole_line for k in order)
            sink.flush()
            sent.extend([len(sent) + k for k in order])
    return Order(np.frombuffer(sent, np.int64), spec.method, windows.parameters, windows.seeds, md5.hexdigest())


def _distinct(name: str, rows: Iterable[Row]) -> Iterator[Row]:
    seen = IdSet()
    for row in rows:
        if not seen.add(id_key(row.id)):
            raise ReorderError(
                f"{name}: id {row.id!r} on line {row.number} stands already on an earlier line, so outputs could not "
                "be put back. Give every row its own id"
            )
        yield row


def _view_of_window(name: str, rows: Sequence[Row], served: ServedModel, reading: Reading) -> PromptView:
    def text(i: int) -> str:  # knows the rows and not the view, so that a window's memory is free when it has gone
        return reading(rows[i].record, on_line(name, rows[i].number, rows[i].id))

    return PromptView(
        [row.id for row in rows],
        [row.label for row in rows],
        text,
        [row.number for row in rows],
        source=name,
        served=served,
    )


@contextlib.contextmanager
def _opened(destination: str | Path) -> Iterator[IO[bytes]]:
    """Where rows go as they come: a file is whole or not there, and what a pipe took is gone."""
    standard = str(destination) == STANDARD_STREAM
    path = Path(destination).resolve()
    if path.is_dir() and not standard:
        raise ReorderError(f"{destination}: is a folder. Name a file")
    try:
        with contextlib.ExitStack() as stack:
            if standard:
                yield sys.stdout.buffer
            elif path.is_file() or not path.exists():
                yield stack.enter_context(atomic_file(path))
            else:  # a pipe or device: nothing may be renamed over it
                yield stack.enter_context(open(path, "wb"))
    except BrokenPipeError:
        raise  # the reader has had enough: no mistake of the user's
    except OSError as error:
        raise ReorderError(f"{destination}: cannot be written: {error.strerror}. Check the path and the disk") from None


def _write(rows: Rows, permutation: Sequence[int], destination: str | Path) -> None:
    """All rows, in this order."""
    with _opened(destination) as sink:
        rows.write(permutation, sink)
        sink.flush()
