"""order.parquet gives back the very order that was written, or says what is wrong with the file."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.orders import order_table
from orderproof.orders.order import Order, OrderError
from orderproof.orders.order_table import find_among, read_order, write_order

ORDER = Order(np.array([2, 0, 1]), "cluster", {"clusters": 2}, {"kmeans": 3}, "0" * 32)
IDS = ["a", "b", "ü"]


def test_an_order_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "job" / "order.parquet"
    write_order(path, ORDER, IDS)
    assert read_order(path, ORDER.record(), find_among(IDS), 3) == ORDER
    table = pq.read_table(path)
    assert table.schema.names == ["position", "prompt_id"]
    assert table.schema.types == [pa.int64(), pa.string()]
    assert table.to_pydict() == {"position": [0, 1, 2], "prompt_id": ["ü", "a", "b"]}
    assert [file.name for file in path.parent.iterdir()] == ["order.parquet"]


def test_the_same_order_is_written_in_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_order(tmp_path / name, Order(np.arange(100)[::-1], "label"), [f"p{i}" for i in range(100)])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("n", [0, 1, 10, 11, 25])
def test_batches_of_rows_make_one_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr(order_table, "BATCH_ROWS", 10)
    order, ids = Order(np.random.default_rng(0).permutation(n), "label"), [f"p{i}" for i in range(n)]
    write_order(tmp_path / "order.parquet", order, ids)
    assert read_order(tmp_path / "order.parquet", order.record(), find_among(ids), n) == order


def test_memory_beside_the_permutation_does_not_grow_with_the_prompts(tmp_path: Path) -> None:
    n, path = 500_000, tmp_path / "order.parquet"
    order = Order(np.random.default_rng(0).permutation(n), "label")
    write_order(path, order, [str(i) for i in range(n)])
    record = order.record()
    tracemalloc.start()
    try:
        read_order(path, record, lambda ids: np.array(ids, np.int64), n)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * order.permutation.nbytes + (16 << 20), "a list of all ids alone takes 30 MB more"


@pytest.mark.parametrize(("ids", "message"), [(["a", "a", "b"], "not unique"), (["a"], "1 prompts .* of 3")])
def test_an_order_is_not_written_with_ids_that_do_not_fit(tmp_path: Path, ids: list[str], message: str) -> None:
    path = tmp_path / "order.parquet"
    write_order(path, ORDER, IDS)
    with pytest.raises(OrderError, match=message):
        write_order(path, ORDER, ids)
    assert read_order(path, ORDER.record(), find_among(IDS), 3) == ORDER


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"position": [0, 2], "prompt_id": ["a", "b"]}, "positions"),
        ({"position": [1, 0], "prompt_id": ["a", "b"]}, "positions"),
        ({"position": [0, 1, 2], "prompt_id": ["a", "a", "b"]}, "not an order of 3"),
        ({"position": [0, 1], "prompt_id": ["b", "a"]}, "not an order of 2|another|not the order"),
        ({"position": [0, 1, 2], "prompt_id": ["a", "b", "new"]}, "'new'"),
        ({"position": [0, 1], "prompt_id": ["a", None]}, "not readable"),
        ({"position": [0, 1]}, "not readable"),
    ],
)
def test_a_damaged_or_different_table_is_named(tmp_path: Path, columns: dict[str, list[object]], message: str) -> None:
    path = tmp_path / "order.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(OrderError, match=message) as refusal:
        read_order(path, ORDER.record(), find_among(IDS), 3)
    assert str(path) in str(refusal.value)


def test_prompts_that_were_left_out_of_an_order_are_sent_before_the_others(tmp_path: Path) -> None:
    path = tmp_path / "order.parquet"
    write_order(path, ORDER, IDS)
    read = read_order(path, ORDER.record(), find_among(["new", "a", "b", "newer", "ü"]), 5)
    assert read.permutation.tolist() == [0, 3, 4, 1, 2]
    assert (read.method, read.parameters, read.seeds) == (ORDER.method, ORDER.parameters, ORDER.seeds)


def test_an_order_that_is_not_the_recorded_one_is_refused(tmp_path: Path) -> None:
    write_order(tmp_path / "order.parquet", ORDER, IDS)
    with pytest.raises(OrderError, match="not the order"):
        read_order(tmp_path / "order.parquet", Order(np.arange(3), "file").record(), find_among(IDS), 3)


def test_a_missing_or_torn_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "order.parquet"
    with pytest.raises(OrderError, match="not readable"):
        read_order(path, ORDER.record(), find_among(IDS), 3)
    write_order(path, ORDER, IDS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(OrderError, match="not readable"):
        read_order(path, ORDER.record(), find_among(IDS), 3)
