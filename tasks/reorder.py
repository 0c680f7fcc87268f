"""Prompts sorted, and outputs put back, for any other tool: `orderproof order` and `orderproof restore`.

In: files of rows (row_files.py), or `-` for the standard streams. Out: the same rows in another order, in a file
that is whole or not there. Knows nothing of jobs, engines or trials.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orderproof.tasks.errors import OrderproofError
from orderproof.tasks.files import atomic_file
from orderproof.tasks.jobs import OrderSpec
from orderproof.tasks.orders import Order, PromptView, make_order
from orderproof.tasks.orders.view import text_of
from orderproof.tasks.prompts.row_files import STANDARD_STREAM, Rows, open_rows
from orderproof.tasks.signals import Progress

NAMED_IDS = 5  # of each kind, in a message


class ReorderError(OrderproofError):
    """Rows that cannot be sorted or put back: file, line and id, and what to do."""


def reorder_file(
    source: str | Path, destination: str | Path, spec: OrderSpec, *, progress: Progress | None = None
) -> Order:
    """Write the rows of `source` to `destination` in another order.

    Every row needs an `id` (or `custom_id`) of its own; a `label`, or a text as `text_of` finds it, where the order
    asks for one.

    Raises:
        RowError, ReorderError, OrderError, SignalError: `destination` is then as it was.
    """
    with open_rows(source) as rows:
        _refuse_other_kind(rows, destination)
        if _same_file(source, destination):
            raise ReorderError(f"{source}: would be overwritten, but outputs are put back by it. Name another file")
        _refuse_doubles(rows)
        order = make_order(spec, _view(rows), rows.md5(), progress=progress)
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
        _refuse_other_kind(rows, destination)
        if _same_file(like, destination):
            raise ReorderError(f"{like}: the prompts would be overwritten by outputs. Name another destination")
        _refuse_doubles(wanted)
        _write(rows, _places(wanted, rows), destination)
        return len(wanted.ids)


def _view(rows: Rows) -> PromptView:
    def text(i: int) -> str:
        return text_of(rows.record(i), view.where(i))

    view = PromptView(rows.ids, rows.labels, text, rows.numbers, source=rows.name)
    return view


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


def _refuse_other_kind(rows: Rows, destination: str | Path) -> None:
    suffix = Path(destination).suffix.lower()
    if suffix in {".jsonl", ".parquet"} - {rows.suffix}:
        raise ReorderError(
            f"{destination}: rows are written as they are read, and {rows.name} "
            f"holds {rows.suffix[1:]}. Name a {rows.suffix} file"
        )


def _same_file(source: str | Path, destination: str | Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samefile(source, destination)
    return False


def _write(rows: Rows, permutation: Sequence[int], destination: str | Path) -> None:
    """All rows or none."""
    standard = str(destination) == STANDARD_STREAM
    path = Path(destination).resolve()
    if path.is_dir() and not standard:
        raise ReorderError(f"{destination}: is a folder. Name a file")
    try:
        if not standard and (path.is_file() or not path.exists()):
            with atomic_file(path) as sink:
                rows.write(permutation, sink)
            return
        # A pipe or device: nothing may be renamed over it.
        with tempfile.TemporaryFile() as spool, contextlib.ExitStack() as stack:
            rows.write(permutation, spool)
            spool.seek(0)
            stream = sys.stdout.buffer if standard else stack.enter_context(open(path, "wb"))
            shutil.copyfileobj(spool, stream)
            stream.flush()
    except BrokenPipeError:
        raise  # the reader has had enough: no mistake of the user's
    except OSError as error:
        raise ReorderError(f"{destination}: cannot be written: {error.strerror}. Check the path and the disk") from None
