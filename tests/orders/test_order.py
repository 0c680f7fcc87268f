"""An order is a permutation that cannot change, gives outputs back, and can be made again from its record."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderproof.orders.order import Order, OrderError
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
    ("indices", "message"),
    [
        ([0, 1, 1], "2 is expected where it has 1"),
        ([1, 2, 3], "0 is expected where it has 1"),
        ([0, -1], "0 is expected where it has -1"),
        ([0.0, 1.0], "whole numbers"),
        ([[0, 1]], "whole numbers"),
    ],
)
def test_only_a_permutation_is_an_order(indices: list[object], message: str) -> None:
    with pytest.raises(OrderError, match=message):
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
