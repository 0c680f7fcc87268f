"""`orderproof restore`: write any tool's outputs in the order of the prompts file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orderproof.orders.destination import ReorderError, check_destination, is_same_file
from orderproof.orders.reorder_files import check_unique_ids, write_rows
from orderproof.prompts.tail_lines import STANDARD_STREAM
from orderproof.prompts.verbatim_rows import Rows, open_rows

NAMED_IDS = 5  # of each kind, in a message


def restore_file(outputs: str | Path, like: str | Path, destination: str | Path) -> int:
    """Write the rows of `outputs` to `destination` in the order in which `like` has their ids.

    Returns:
        How many rows.

    Raises:
        RowError, ReorderError: names missing, repeated and unknown ids; `destination` is then unchanged.
    """
    if str(outputs) == str(like) == STANDARD_STREAM:
        raise ReorderError("only one of the two files can be standard input. Give the name of the other")
    with open_rows(like) as prompts, open_rows(outputs) as rows:
        check_destination(rows.name, rows.suffix, destination)
        if is_same_file(like, destination):
            raise ReorderError(f"{like}: the prompts would be overwritten by outputs. Give another destination")
        check_unique_ids(prompts)
        write_rows(rows, _match_rows(prompts, rows), destination)
        return len(prompts.ids)


def _match_rows(prompts: Rows, outputs: Rows) -> list[int]:
    """For each prompt the row of its output."""
    row_of: dict[str, int] = {}
    repeated = [(id, i, row_of[id]) for i, id in enumerate(outputs.ids) if row_of.setdefault(id, i) != i]
    known = set(prompts.ids)
    problems = {
        "missing": [id for id in prompts.ids if id not in row_of],
        "given twice": [f"{id} on {outputs.numbers[first]} and {outputs.numbers[i]}" for id, i, first in repeated],
        "unknown": [id for id in row_of if id not in known],
    }
    listed = [f"{len(ids)} {problem} ({_first_of(ids)})" for problem, ids in problems.items() if ids]
    if listed:
        raise ReorderError(
            f"{outputs.name}: its ids do not match those of {prompts.name}: {'; '.join(listed)}. Every prompt needs "
            "exactly one row. Nothing was written"
        )
    return [row_of[id] for id in prompts.ids]


def _first_of(ids: Sequence[str]) -> str:
    more = ["…"] if len(ids) > NAMED_IDS else []
    return ", ".join([*ids[:NAMED_IDS], *more])
