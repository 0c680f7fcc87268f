"""`orderproof order`: write the rows of a file or stream in another order, for any other tool."""

from __future__ import annotations

import hashlib
import io
import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from orderproof.job.spec import OrderSpec
from orderproof.orders.destination import ReorderError, check_destination, is_same_file, open_destination
from orderproof.orders.order import Order
from orderproof.orders.registry import make_order
from orderproof.orders.row_text import RowText, row_text
from orderproof.orders.view import PromptView, on_line
from orderproof.orders.window import Windows
from orderproof.prompts.ids import IdSet, id_key
from orderproof.prompts.json_lines import BYTE_ORDER_MARK
from orderproof.prompts.tail_lines import STANDARD_STREAM
from orderproof.prompts.verbatim_rows import Row, Rows, may_stream, open_source, rows_in, stream_rows
from orderproof.signals.served_model import UNKNOWN_MODEL, ServedModel


def reorder_file(
    source: str | Path, destination: str | Path, spec: OrderSpec, *, served: ServedModel = UNKNOWN_MODEL
) -> Order:
    """Write the rows of `source` to `destination` in another order; `-` is standard input or output.

    Every row needs an `id` (or `custom_id`) of its own, and a label or a text if the method uses it. With a window,
    JSON lines are written window by window, each before the next one is read; 16 bytes per row stay in memory.

    Args:
        served: the model that will answer, for a signal that needs it.

    Raises:
        RowError, ReorderError, OrderError, SignalError: a destination file is then unchanged; a pipe has received the
            windows before the row at fault.
    """
    if str(source) != STANDARD_STREAM and is_same_file(source, destination):
        raise ReorderError(
            f"{source}: would be overwritten, and it is needed to restore the order of outputs. Give another file"
        )
    with open_source(source) as (name, file):
        if spec.window and may_stream(file):
            check_destination(name, ".jsonl", destination)
            return _reorder_stream(name, file, destination, spec, served)
        with rows_in(name, file) as rows:
            check_destination(name, rows.suffix, destination)
            check_unique_ids(rows)
            order = make_order(spec, _view(rows, served, row_text(spec, served)), rows.md5())
            write_rows(rows, order.permutation.tolist(), destination)
            return order


def check_unique_ids(rows: Rows) -> None:
    """Raise ReorderError if two rows have the same id."""
    word, first = "line" if rows.suffix == ".jsonl" else "row", dict[str, int]()
    for i, prompt_id in enumerate(rows.ids):
        if first.setdefault(prompt_id, i) != i:
            where = f"on {word} {rows.numbers[i]}, first on {word} {rows.numbers[first[prompt_id]]}"
            raise _duplicate(rows.name, prompt_id, where)


def write_rows(rows: Rows, permutation: Sequence[int], destination: str | Path) -> None:
    """Write all rows in this order. Raises ReorderError if the destination cannot be written."""
    with open_destination(destination) as sink:
        rows.write(permutation, sink)
        sink.flush()


def _duplicate(name: str, prompt_id: str, where: str) -> ReorderError:
    return ReorderError(f"{name}: duplicate id {prompt_id!r} {where}. Give every row its own id")


def _view(rows: Rows, served: ServedModel, read_text: RowText) -> PromptView:
    def text(i: int) -> str:
        return read_text(rows.record(i), on_line(rows.name, rows.numbers[i], rows.ids[i]))

    return PromptView(rows.ids, rows.labels, text, rows.numbers, source=rows.name, served=served)


def _reorder_stream(
    name: str, file: io.BufferedReader, destination: str | Path, spec: OrderSpec, served: ServedModel
) -> Order:
    """Order window by window, writing each before the next one is read."""
    assert spec.window is not None
    windows, permutation, md5 = Windows(spec), array("q"), hashlib.md5(usedforsecurity=False)
    rows, read_text = _unique_rows(name, stream_rows(name, file, md5.update)), row_text(spec, served)
    mark = BYTE_ORDER_MARK if file.peek(3).startswith(BYTE_ORDER_MARK) else b""
    with open_destination(destination) as sink:
        sink.write(mark)
        while window := list(itertools.islice(rows, spec.window)):
            order = windows.add(_window_view(name, window, served, read_text)).tolist()
            sink.writelines(window[k].whole_line for k in order)
            sink.flush()
            permutation.extend([len(permutation) + k for k in order])
    return Order(np.frombuffer(permutation, np.int64), spec.method, windows.parameters, windows.seeds, md5.hexdigest())


def _unique_rows(name: str, rows: Iterable[Row]) -> Iterator[Row]:
    ids = IdSet()
    for row in rows:
        if not ids.add(id_key(row.id)):
            raise _duplicate(name, row.id, f"on line {row.number}, already used on an earlier line")
        yield row


def _window_view(name: str, rows: Sequence[Row], served: ServedModel, read_text: RowText) -> PromptView:
    def text(i: int) -> str:  # refers to the rows and not to the view: a cycle would keep each window in memory
        return read_text(rows[i].record, on_line(name, rows[i].number, rows[i].id))

    return PromptView(
        [row.id for row in rows],
        [row.label for row in rows],
        text,
        [row.number for row in rows],
        source=name,
        served=served,
    )
