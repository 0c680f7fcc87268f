"""Any tool's outputs come back in the order of the prompts, each exactly once, or nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.job.spec import OrderSpec
from orderproof.orders.destination import ReorderError
from orderproof.orders.reorder_files import reorder_file
from orderproof.orders.restore_files import restore_file
from tests.support.row_files import read_rows, write_rows

SHUFFLED, LENGTH = OrderSpec(method="shuffled", seed=1), OrderSpec(method="length")


def outputs_of(sorted_file: Path) -> list[dict[str, Any]]:
    """What a tool that keeps the order of its requests might write."""
    return [{"custom_id": row["id"], "response": row["text"].upper()} for row in read_rows(sorted_file)]


def test_outputs_of_another_tool_come_back_in_the_prompts_order(prompts: Path, tmp_path: Path) -> None:
    order = reorder_file(prompts, tmp_path / "sorted.jsonl", LENGTH)
    sent = read_rows(tmp_path / "sorted.jsonl")
    assert sent == order.apply(read_rows(prompts))
    assert sent != read_rows(prompts)
    outputs = write_rows(tmp_path / "outputs.jsonl", outputs_of(tmp_path / "sorted.jsonl"))
    assert restore_file(outputs, prompts, tmp_path / "restored.jsonl") == 20
    assert [row["custom_id"] for row in read_rows(tmp_path / "restored.jsonl")] == [f"p{i}" for i in range(20)]


def test_sorted_and_restored_a_file_is_what_it_was(prompts: Path, tmp_path: Path) -> None:
    reorder_file(prompts, tmp_path / "sorted.jsonl", SHUFFLED)
    restore_file(tmp_path / "sorted.jsonl", prompts, tmp_path / "restored.jsonl")
    assert (tmp_path / "restored.jsonl").read_bytes() == prompts.read_bytes()


def test_outputs_in_parquet_are_put_back_by_prompts_in_json_lines(prompts: Path, tmp_path: Path) -> None:
    reorder_file(prompts, tmp_path / "sorted.jsonl", SHUFFLED)
    pq.write_table(pa.Table.from_pylist(outputs_of(tmp_path / "sorted.jsonl")), tmp_path / "outputs.parquet")
    restore_file(tmp_path / "outputs.parquet", prompts, tmp_path / "restored.parquet")
    assert pq.read_table(tmp_path / "restored.parquet")["custom_id"].to_pylist() == [f"p{i}" for i in range(20)]


def test_a_batch_files_outputs_are_put_back_in_the_order_of_its_requests(tmp_path: Path) -> None:
    url = "/v1/completions"
    rows = [{"custom_id": f"r{i}", "method": "POST", "url": url, "body": {"prompt": "w" * i}} for i in range(5)]
    batch = write_rows(tmp_path / "in.jsonl", rows)
    reorder_file(batch, tmp_path / "sorted.jsonl", LENGTH)
    answers = [
        {"id": "x", "custom_id": row["custom_id"], "response": {"status_code": 200, "body": {}}, "error": None}
        for row in read_rows(tmp_path / "sorted.jsonl")
    ]
    restore_file(write_rows(tmp_path / "answers.jsonl", answers), batch, tmp_path / "restored.jsonl")
    assert [row["custom_id"] for row in read_rows(tmp_path / "restored.jsonl")] == [f"r{i}" for i in range(5)]


def test_a_number_as_id_is_the_same_as_its_digits(tmp_path: Path) -> None:
    like = write_rows(tmp_path / "in.jsonl", [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
    outputs = write_rows(tmp_path / "out.jsonl", [{"id": "2"}, {"id": "1"}])
    restore_file(outputs, like, tmp_path / "restored.jsonl")
    assert read_rows(tmp_path / "restored.jsonl") == [{"id": "1"}, {"id": "2"}]


def test_missing_double_and_unknown_ids_are_named_and_nothing_is_written(prompts: Path, tmp_path: Path) -> None:
    ids = [f"p{i}" for i in range(2, 20)] + ["p5", "q1"]
    outputs = write_rows(tmp_path / "outputs.jsonl", [{"id": id} for id in ids])
    target = tmp_path / "restored.jsonl"
    target.write_text("as before")
    with pytest.raises(ReorderError, match=r"2 missing \(p0, p1\); 1 given twice \(p5 on 4 and 19\); 1 unknown \(q1\)"):
        restore_file(outputs, prompts, target)
    assert target.read_text() == "as before"
    assert not list(tmp_path.glob(".*"))


def test_only_the_first_of_many_missing_ids_are_named(prompts: Path, tmp_path: Path) -> None:
    outputs = write_rows(tmp_path / "outputs.jsonl", [{"id": "p19"}])
    with pytest.raises(ReorderError, match=r"19 missing \(p0, p1, p2, p3, p4, …\)"):
        restore_file(outputs, prompts, tmp_path / "restored.jsonl")


def test_outputs_may_be_put_back_in_place(prompts: Path, tmp_path: Path) -> None:
    reorder_file(prompts, tmp_path / "rows.jsonl", SHUFFLED)
    restore_file(tmp_path / "rows.jsonl", prompts, tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_bytes() == prompts.read_bytes()


def test_both_files_cannot_come_from_one_stream() -> None:
    with pytest.raises(ReorderError, match="only one"):
        restore_file("-", "-", "-")
