"""Several samples of a prompt are compared together, whatever the order of their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from orderproof.outputs.divergence import most_different
from orderproof.outputs.errors import OutputsError
from orderproof.outputs.passes import PassOutputs
from orderproof.outputs.samples import SAMPLE_END, join_samples

ROWS = [
    {"prompt_id": "b", "sample": 1, "token_ids": [4], "text": "four", "score": 0.0},
    {"prompt_id": "a", "sample": 0, "token_ids": [1, 2], "text": "one two", "score": None},
    {"prompt_id": "b", "sample": 0, "token_ids": [], "text": "", "score": 1.0},
    {"prompt_id": "b", "sample": 2, "token_ids": [5, 6], "text": "five six", "score": 1.0},
]


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    types = {"token_ids": pa.list_(pa.int32()), "sample": pa.int32(), "score": pa.float64()}
    columns = {name: pa.array([row[name] for row in rows], types.get(name, pa.string())) for name in rows[0]}
    return pa.table(columns)


def test_a_row_per_sample_becomes_a_row_per_prompt() -> None:
    joined = {row["prompt_id"]: row for row in join_samples("p", table_of(ROWS)).to_pylist()}
    assert joined["a"] == {"prompt_id": "a", "token_ids": [1, 2], "text": "one two", "score": None}
    assert joined["b"]["token_ids"] == [SAMPLE_END, 4, SAMPLE_END, 5, 6]
    assert joined["b"]["text"] == "\n\nfour\n\nfive six"
    assert joined["b"]["score"] == pytest.approx(2 / 3)


def test_a_table_without_samples_stays_as_it_is() -> None:
    table = table_of(ROWS[:2]).drop_columns("sample")
    assert join_samples("p", table) is table
    assert join_samples("p", table_of(ROWS).slice(0, 0)).num_rows == 0


def test_outputs_differ_if_and_only_if_a_sample_differs() -> None:
    ids = ["a", "b"]
    moved = [{**row, "token_ids": [9]} if row["token_ids"] == [4] else row for row in ROWS]
    split = [{**row, "token_ids": {1: [4, 5], 2: [6]}.get(row["sample"], row["token_ids"])} for row in ROWS]
    one, same, other, shifted = (
        PassOutputs.from_tokens("p", "control", table_of(rows), ids) for rows in (ROWS, ROWS[::-1], moved, split)
    )
    assert np.array_equal(one.digests, same.digests)
    assert (one.digests == other.digests).tolist() == [True, False]
    assert (one.digests == shifted.digests).tolist() == [True, False], "the same tokens in other samples"
    assert one.scores is not None
    assert np.array_equal(one.scores, [np.nan, 2 / 3], equal_nan=True)
    (pair,) = most_different(table_of(ROWS), table_of(moved), ids)
    assert (pair.prompt_id, pair.first_divergence) == ("b", 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [(ROWS[:2] + ROWS[3:], "'b' has sample 1"), ([*ROWS, ROWS[0]], "'b' has sample 1 where sample 2")],
)
def test_a_missing_or_repeated_sample_is_named(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(OutputsError, match=f"pass b03: prompt {message}"):
        join_samples("b03", table_of(rows))


def test_a_sample_without_tokens_is_an_error() -> None:
    with pytest.raises(OutputsError, match="1 samples have no token_ids"):
        join_samples("b03", table_of([*ROWS[1:], {**ROWS[0], "token_ids": None}]))
