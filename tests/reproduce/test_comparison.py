"""Two files of outputs, and what is said of how they differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.reproduce import join_outputs as rows_of
from orderproof.reproduce.comparison import OutputComparison, PairedScores, compare_outputs

Row = tuple[str, int, str | None, list[int], str]


def row(id: str, *tokens: int, sample: int = 0, text: str | None = None, finish: str = "stop") -> Row:
    shown = None if finish == "failed" else " ".join(map(str, tokens)) if text is None else text
    return id, sample, shown, list(tokens), finish


def write(path: Path, rows: Sequence[Row], *, group: int = 1000, samples: bool = True) -> Path:
    names = ("id", "sample", "text", "token_ids", "finish_reason")
    types = (pa.string(), pa.int32(), pa.string(), pa.list_(pa.int32()), pa.string())
    arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
    table = pa.Table.from_arrays(arrays, names=names)
    pq.write_table(table if samples else table.drop_columns("sample"), path, row_group_size=group)
    return path


def compared(tmp_path: Path, then: Sequence[Row], now: Sequence[Row], **how: Any) -> OutputComparison:
    return compare_outputs(write(tmp_path / "then", then), write(tmp_path / "now", now), **how)[0]


def many(count: int, other: Sequence[int] = ()) -> list[Row]:
    """Outputs of which some differ from token 2 on."""
    return [row(f"p{k}", k, k + 1, 7 if k in other else 8, k + 3) for k in range(count)]


def test_the_same_outputs_are_identical(tmp_path: Path) -> None:
    seen = compared(tmp_path, many(10), many(10))
    assert (seen.outputs, seen.compared, seen.identical, seen.diverged, seen.altered) == (10, 10, 10, 0, 0)
    assert seen.all_identical
    assert seen.reproduced
    assert seen.same_until == ()
    assert set(seen.first_divergence.values()) == {None}


def test_another_token_is_found_where_it_stands(tmp_path: Path) -> None:
    then = [row("a", 1, 2, 3), row("b", 1, 2), row("c", 5), row("d", 1)]
    now = [row("a", 1, 9, 3), row("b", 1, 2, 4), row("c", 6), row("d", 1)]
    seen = compared(tmp_path, then, now)
    assert (seen.identical, seen.diverged) == (1, 3)
    assert {one.id: one.first_divergence for one in seen.most_different} == {"a": 1, "b": 2, "c": 0}
    assert [one.id for one in seen.most_different] == ["c", "a", "b"], "least alike first"
    assert seen.first_divergence["median"] == 1
    assert dict(seen.same_until) == {0: 1.0, 1: 0.75, 2: 0.5, 3: 0.25}


def test_another_text_or_finish_of_the_same_tokens_is_no_identity(tmp_path: Path) -> None:
    then = [row("a", 1), row("b", 2), row("c", 3)]
    now = [row("a", 1, text="one"), row("b", 2, finish="length"), row("c", 3)]
    seen = compared(tmp_path, then, now)
    assert (seen.identical, seen.diverged, seen.altered) == (1, 0, 2)
    assert seen.finish_changes == {"stop → length": 1}
    assert not seen.reproduced


def test_what_fails_both_times_is_reproduced_but_never_called_identical(tmp_path: Path) -> None:
    rows = [row("a", finish="failed"), row("b", 2)]
    seen = compared(tmp_path, rows, rows)
    assert (seen.failed_then, seen.failed_now, seen.compared, seen.identical) == (1, 1, 1, 1)
    assert seen.reproduced
    assert not seen.all_identical
    second = compared(tmp_path, rows, [row("a", 1), row("b", 2)])
    assert (second.failed_then, second.failed_now, second.finish_changes) == (1, 0, {"failed → stop": 1})
    assert not second.reproduced
    lost = compared(tmp_path, [row("a", 1), row("b", 2)], rows)
    assert (lost.failed_then, lost.failed_now, lost.compared, lost.diverged) == (0, 1, 1, 0)
    assert not lost.reproduced


@pytest.mark.parametrize("groups", [(1000, 1000), (7, 10), (1, 13)])
def test_rows_are_matched_whatever_the_files_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: tuple[int, int]
) -> None:
    monkeypatch.setattr(rows_of, "ROWS_AT_ONCE", 4)
    then = write(tmp_path / "then", many(50), group=groups[0])
    now = write(tmp_path / "now", many(50, other=(3, 40)), group=groups[1])
    seen = compare_outputs(then, now)[0]
    assert (seen.outputs, seen.identical) == (50, 48)
    assert {one.id for one in seen.most_different} == {"p3", "p40"}


def test_rows_are_matched_by_id_and_sample_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_of, "ROWS_AT_ONCE", 2)
    then = [row("a", 1, sample=0), row("a", 2, sample=1), row("b", 3), row("gone", 4)]
    now = [row("new", 4), row("b", 3), row("a", 9, sample=1), row("a", 1, sample=0)]
    seen = compared(tmp_path, then, now)
    assert (seen.outputs, seen.only_then, seen.only_now, seen.identical) == (3, 1, 1, 2)
    assert [(one.id, one.sample) for one in seen.most_different] == [("a", 1)]
    assert not seen.reproduced


def test_outputs_that_came_or_went_at_the_end_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_of, "ROWS_AT_ONCE", 5)
    assert (more := compared(tmp_path, many(5), many(10))).only_now == 5
    assert (more.only_then, more.identical, more.reproduced) == (0, 5, False)
    assert compared(tmp_path, many(10), many(5)).only_then == 5


def test_a_file_of_before_there_were_samples_holds_the_first_ones(tmp_path: Path) -> None:
    then = write(tmp_path / "then", many(5), samples=False)
    now = write(tmp_path / "now", many(5))
    assert compare_outputs(then, now)[0].identical == 5


def test_the_most_different_are_few_and_the_least_alike(tmp_path: Path) -> None:
    then = [row(f"p{k}", *range(20)) for k in range(30)]
    now = [row(f"p{k}", *range(20 - k % 20), *[99] * (k % 20)) for k in range(30)]
    seen = compared(tmp_path, then, now, k=3)
    assert [one.id for one in seen.most_different] == ["p19", "p18", "p17"]
    assert {(one.then, one.now) for one in seen.most_different} == {(None, None)}
    early_but_alike = [row("p0", 99, *range(1, 20)), row("p1", *range(10), *[99] * 10)]
    assert [one.id for one in compared(tmp_path, then[:2], early_but_alike).most_different] == ["p1", "p0"]
    shown = compared(tmp_path, then, now, k=1, texts=True).most_different[0]
    assert (shown.then, shown.now) == (then[19][2], now[19][2])


def test_scores_are_paired_and_what_is_not_scored_both_times_left_out(tmp_path: Path) -> None:
    def scorer(ids: Sequence[str], texts: Sequence[str | None]) -> np.ndarray:
        pairs = zip(ids, texts, strict=True)
        return np.array([np.nan if text is None or id == "b" else float(text) for id, text in pairs])

    then = [row("a", 1), row("b", 1), row("c", 0), row("d", finish="failed"), row("e", 1)]
    now = [row("a", 0), row("b", 1), row("c", 0), row("d", 1), row("e", finish="failed")]
    scored = compare_outputs(write(tmp_path / "then", then), write(tmp_path / "now", now), scorer=scorer)[1]
    assert isinstance(scored, PairedScores)
    assert (scored.ids, scored.then.tolist(), scored.now.tolist()) == (("a", "c"), [1, 0], [0, 0])
