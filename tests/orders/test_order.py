"""An order is a permutation that cannot change, gives outputs back, and survives its record and file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderproof.orders.order import Order, OrderError, read_order, write_order
from orderproof.orders.registry import restore

permutations = st.integers(0, 50).flatmap(lambda n: st.permutations(range(n))).map(lambda p: np.array(p, np.int64))


@given(permutations)
def test_what_is_sent_in_an_order_comes_back_in_the_files_order(permutation: np.ndarray) -> None:
    order = Order(permutation, "given")
    prompts = [f"prompt {i}" for i in range(len(permutation))]
    sent = order.apply(prompts)
    assert restore(sent, order) == prompts
    assert [sent[place] for place in order.inverse()] == prompts


@pytest.mark.parametrize(
    ("indices", "told"),
    [
        ([0, 1, 1], "where 2 should follow it has 1"),
        ([1, 2, 3], "where 0 should follow it has 1"),
        ([0, -1], "where 0 should follow it has -1"),
        ([0.0, 1.0], "whole numbers"),
        ([[0, 1]], "whole numbers"),
    ],
)
def test_only_a_permutation_is_an_order(indices: list[object], told: str) -> None:
    with pytest.raises(OrderError, match=told):
        Order(np.array(indices), "given")


def test_an_order_refuses_another_number_of_prompts_or_outputs() -> None:
    order = Order(np.array([2, 0, 1]), "given")
    with pytest.raises(OrderError, match="4 prompts for an order of 3"):
        order.apply("abcd")
    with pytest.raises(OrderError, match="2 outputs for an order of 3"):
        restore("ab", order)


def test_an_order_cannot_be_changed_afterwards() -> None:
    mine = np.array([1, 0])
    order = Order(mine, "given")
    mine[0] = 7
    assert order.permutation.tolist() == [1, 0]
    with pytest.raises(ValueError, match="read-only"):
        order.permutation[0] = 0


def test_the_record_holds_the_hash_of_the_little_endian_permutation_and_survives_json() -> None:
    order = Order(np.array([1, 0]), "shuffled", {"window": 2}, {"shuffle": 3}, "0" * 32)
    assert order.sha256 == hashlib.sha256(bytes([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])).hexdigest()
    record = order.record()
    assert type(record).model_validate(json.loads(record.model_dump_json())) == record


def test_orders_are_equal_when_their_records_are() -> None:
    order = Order(np.array([1, 0]), "shuffled", {}, {"shuffle": 3})
    assert order == Order(np.array([1, 0], np.int32), "shuffled", {}, {"shuffle": 3})
    assert order != Order(np.array([0, 1]), "shuffled", {}, {"shuffle": 3})
    assert order != Order(np.array([1, 0]), "shuffled", {}, {"shuffle": 4})


def test_a_pinned_order_reads_back_as_the_ids_in_the_order_of_sending(tmp_path: Path) -> None:
    path = tmp_path / "job" / "order.parquet"
    write_order(path, Order(np.array([2, 0, 1]), "given"), ["a", "b", "ü"])
    assert read_order(path) == ["ü", "a", "b"]
    table = pq.read_table(path)
    assert table.schema.names == ["position", "prompt_id"]
    assert table.schema.types == [pa.int64(), pa.string()]
    assert table["position"].to_pylist() == [0, 1, 2]
    assert [found.name for found in path.parent.iterdir()] == ["order.parquet"]


def test_the_same_order_is_pinned_in_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_order(tmp_path / name, Order(np.arange(100)[::-1], "given"), [f"p{i}" for i in range(100)])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(("ids", "told"), [(["a", "a"], "not unique"), (["a"], "1 prompts for an order of 2")])
def test_an_order_is_not_pinned_by_ids_that_do_not_fit(tmp_path: Path, ids: list[str], told: str) -> None:
    path = tmp_path / "order.parquet"
    write_order(path, Order(np.array([1, 0]), "given"), ["before", "too"])
    with pytest.raises(OrderError, match=told):
        write_order(path, Order(np.array([1, 0]), "given"), ids)
    assert read_order(path) == ["too", "before"]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"position": [0, 2], "prompt_id": ["a", "b"]}, "positions are not 0 to 1"),
        ({"position": [0, 1], "prompt_id": ["a", "a"]}, "stands in it twice"),
        ({"position": [0, 1], "prompt_id": ["a", None]}, "not readable as an order"),
        ({"position": [0, 1]}, "not readable as an order"),
    ],
)
def test_a_damaged_table_is_named(tmp_path: Path, columns: dict[str, list[object]], told: str) -> None:
    path = tmp_path / "order.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(OrderError, match=told) as refusal:
        read_order(path)
    assert str(path) in str(refusal.value)


def test_a_missing_or_torn_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "order.parquet"
    with pytest.raises(OrderError, match="not readable"):
        read_order(path)
    write_order(path, Order(np.arange(9), "file"), list("abcdefghi"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(OrderError, match="not readable"):
        read_order(path)


def test_rows_of_a_pinned_order_may_lie_in_any_sequence(tmp_path: Path) -> None:
    path = tmp_path / "order.parquet"
    pq.write_table(pa.table({"position": [1, 0], "prompt_id": ["second", "first"]}), path)
    assert read_order(path) == ["first", "second"]
