"""What every way to order promises: each prompt once, within its window, made again from the record."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderproof.job.spec import OrderSpec
from orderproof.orders.order import OrderError
from orderproof.orders.registry import METHODS, expert_friendly_order, make_order, restore
from orderproof.orders.shuffle_test import shuffle_like
from orderproof.prompts.prompt import Prompt

Make = Callable[..., list[dict[str, Any]]]
FREE = [method for method in METHODS if method not in ("greedy", "exchange")]  # they need a model and its routes
CLUSTER: dict[str, Any] = {"signal": "lexical", "clusters": 4}


def test_every_registered_name_is_a_module_with_a_ranking() -> None:
    assert METHODS
    assert all(callable(import_module(f"orderproof.orders.{method}").rank) for method in METHODS)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=20)), max_size=40),
    st.sampled_from(FREE),
    st.none() | st.integers(2, 50),
    st.integers(0, 2**70),
)
def test_every_prompt_is_sent_once_and_never_leaves_its_window(
    rows: list[tuple[str, str]], method: str, window: int | None, seed: int
) -> None:
    prompts = [{"label": label, "text": text} for label, text in rows]
    order = expert_friendly_order(prompts, method, window=window, seed=seed, **CLUSTER)
    assert sorted(order.permutation.tolist()) == list(range(len(rows)))
    if window:
        assert (order.permutation // window == np.arange(len(rows)) // window).all()


@pytest.mark.parametrize("method", FREE)
def test_the_record_makes_the_same_order_again(some_prompts: Make, method: str) -> None:
    prompts = some_prompts(60)
    order = make_order(OrderSpec(method=method, window=20, seed=5, **CLUSTER), prompts, "md5")
    record = order.record()
    parameters = {key: record.parameters[key] for key in record.parameters if key in OrderSpec.model_fields}
    spec = OrderSpec(method=record.method, seed=next(iter(record.seeds.values()), 0), **parameters)
    assert make_order(spec, prompts, "md5") == order
    assert record.parameters["window"] == 20


def test_the_three_lines_give_outputs_in_the_prompts_order(some_prompts: Make) -> None:
    prompts = [prompt["text"] for prompt in some_prompts(50)]
    order = expert_friendly_order(prompts, **CLUSTER)
    outputs = [text.upper() for text in order.apply(prompts)]
    assert restore(outputs, order) == [text.upper() for text in prompts]
    assert order.apply(prompts) != prompts


def test_texts_mappings_chats_and_prompts_of_the_same_words_are_ordered_alike(some_prompts: Make) -> None:
    rows = some_prompts(40)
    as_chats = [({"role": "user", "content": row["text"]},) for row in rows]
    kinds: list[list[Any]] = [
        [row["text"] for row in rows],
        rows,
        as_chats,
        [Prompt(row["id"], row["text"]) for row in rows],
        [Prompt(row["id"], chat) for row, chat in zip(rows, as_chats, strict=True)],
        [{"custom_id": row["id"], "body": {"messages": chat}} for row, chat in zip(rows, as_chats, strict=True)],
        [{"role": "user", "messages": [{"content": [{"type": "text", "text": row["text"]}]}]} for row in rows],
    ]
    orders = [expert_friendly_order(kind, **CLUSTER) for kind in kinds]
    assert len({order.sha256 for order in orders}) == 1


def test_the_hash_of_a_list_tells_lists_apart() -> None:
    def md5(*texts: str) -> str:
        return expert_friendly_order(texts, "file").dataset_md5

    assert md5("a", "b") == md5("a", "b")
    assert len({md5("a", "b"), md5("b", "a"), md5("ab"), md5("ab", ""), md5()}) == 5


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"method": "clusters"}, "did you mean 'cluster'"),
        ({"method": "xyz"}, "choose one of file, shuffled"),
        ({"window": 1}, "window"),
        ({"seed": -1}, "seed"),
        ({"clusters": 1}, "clusters"),
        ({"signal": "lexicon"}, "signal"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(OrderError, match=told):
        expert_friendly_order(["a", "b"], **{"method": "file", **arguments})


def test_a_prompt_without_text_is_named() -> None:
    with pytest.raises(OrderError, match=r"prompts\[1\].*no text"):
        expert_friendly_order([{"text": "a"}, {"words": "b"}], "length")


def test_a_shuffle_is_numpys_own_by_the_recorded_seed() -> None:
    order = make_order(OrderSpec(method="shuffled", seed=11), ["x"] * 100, "md5")
    assert order.permutation.tolist() == np.random.Generator(np.random.PCG64(11)).permutation(100).tolist()
    assert order.seeds == {"shuffle": 11}
    assert order.sha256 != make_order(OrderSpec(method="shuffled", seed=12), ["x"] * 100, "md5").sha256


def test_the_files_order_is_the_files_order_in_windows_too() -> None:
    for window in (None, 7):
        assert expert_friendly_order(["x"] * 100, "file", window=window).permutation.tolist() == list(range(100))


def test_a_shuffle_within_windows_is_still_shuffle_like_inside(some_prompts: Make) -> None:
    prompts = some_prompts(400)
    order = expert_friendly_order(prompts, "shuffled", window=100, seed=3)
    like, p = shuffle_like(order.permutation, prompts)
    assert like, p
