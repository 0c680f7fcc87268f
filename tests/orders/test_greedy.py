"""The greedy order takes the next prompt by its plain rule, each once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orderproof.job.spec import OrderSpec
from orderproof.orders.greedy import greedy_order
from orderproof.orders.order import OrderError
from orderproof.orders.registry import expert_friendly_order, make_order
from tests.support.routed import Routed, make_routed


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Routed:
    return make_routed(tmp_path_factory.mktemp("routed"))


def sets(*members: tuple[int, ...], experts: int = 8) -> np.ndarray:
    """Prompts that surely use these experts and no others."""
    rows = np.zeros((len(members), experts), np.float32)
    for row, own in zip(rows, members, strict=True):
        row[list(own)] = 1
    return rows


def test_the_next_one_brings_the_fewest_new_experts() -> None:
    row = greedy_order([sets((0, 1), (4, 5), (0, 2), (0, 1), (2, 3))], beside=2)
    assert row.tolist() == [0, 3, 2, 4, 1]


def test_what_no_longer_runs_does_not_count() -> None:
    likely = sets((0, 1), (2, 3, 4), (0, 1, 2))
    assert greedy_order([likely[[1, 0, 2]]], beside=5).tolist() == [1, 2, 0]
    random = np.random.default_rng(0)
    rows = (random.random((60, 12)) < 0.4).astype(np.float32) * 0.7
    assert not np.array_equal(greedy_order([rows], 2), greedy_order([rows], 30))


def test_it_is_the_plain_rule_recomputed_at_every_place() -> None:
    random = np.random.default_rng(1)
    likely = random.random((40, 10)).astype(np.float32) ** 3
    left, sent = list(range(40)), []
    while left:
        idle = np.prod(1 - np.minimum(likely[sent[-3:]], 0.99).astype(float), axis=0)
        sent.append(min(left, key=lambda i: (round(float(likely[i] @ idle), 9), i)))
        left.remove(sent[-1])
    assert greedy_order([likely], beside=3, pool=40).tolist() == sent


def test_equal_prompts_keep_the_order_in_which_they_were_offered() -> None:
    assert greedy_order([np.full((9, 4), 0.5, np.float32)], beside=3, pool=9).tolist() == list(range(9))


@pytest.mark.parametrize("pool", [1, 3, 7, 100])
def test_every_prompt_is_sent_once_whatever_the_pool(pool: int) -> None:
    likely = np.random.default_rng(2).random((50, 6)).astype(np.float32)
    row = greedy_order(iter([likely[:13], likely[13:]]), beside=4, pool=pool)
    assert sorted(row.tolist()) == list(range(50))
    assert np.array_equal(row, greedy_order([likely], beside=4, pool=pool)), "chunks change nothing"
    behind = [max(0, place - k) for k, place in enumerate(row.tolist())]
    assert max(behind) < pool, "nobody is taken before it was offered"


def test_nothing_is_in_an_empty_row() -> None:
    assert greedy_order([], beside=3).tolist() == []


@pytest.mark.parametrize("signal", ["predicted", "fingerprint"])
@pytest.mark.parametrize("window", [None, 30])
def test_prompts_of_one_kind_stay_together(routed: Routed, signal: str, window: int | None) -> None:
    spec = OrderSpec.model_validate({"method": "greedy", "signal": signal, "clusters": 4, "window": window})
    order = make_order(spec, routed.view, "md5")
    changes = sum(a["label"] != b["label"] for a, b in itertools.pairwise(order.apply(routed.prompts)))
    assert changes <= (3 if window is None else 10)  # of about 50 in a shuffle
    assert make_order(spec, routed.view, "md5") == order
    assert order.parameters["signal"] == signal


def test_a_signal_that_tells_of_no_experts_is_refused() -> None:
    with pytest.raises(OrderError, match=r"`greedy` adds up experts.*fingerprint or predicted"):
        expert_friendly_order(["a", "b"], "greedy", signal="lexical")
