"""A shuffle is told apart as rarely as promised, and grouped files are caught."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from orderproof.orders import shuffle_test
from orderproof.orders.registry import expert_friendly_order
from orderproof.orders.shuffle_test import neighbour_tests, shuffle_like
from orderproof.orders.view import PromptView

Make = Callable[..., list[dict[str, Any]]]


def without_labels(prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"text": prompt["text"]} for prompt in prompts]


def test_a_shuffle_is_told_apart_with_probability_alpha_at_most(some_prompts: Make) -> None:
    prompts, alpha, trials = some_prompts(60), 0.1, 300
    refused = 0
    for seed in range(trials):
        order = np.random.default_rng(seed).permutation(len(prompts))
        refused += not shuffle_like(order, prompts, alpha=alpha, shuffles=199, seed=seed)[0]
    assert refused <= stats.binom.ppf(0.999, trials, alpha)


def test_the_smallest_p_value_of_shuffles_is_not_far_from_uniform(some_prompts: Make) -> None:
    # Bonferroni may be cautious, but a test that never refused would be no test.
    prompts = without_labels(some_prompts(60))
    p = [
        neighbour_tests(np.random.default_rng(s).permutation(60), prompts, shuffles=199, seed=s)["lexical"]
        for s in range(200)
    ]
    assert stats.kstest(p, "uniform").pvalue > 0.001


def test_a_shuffle_sampled_from_a_long_file_is_told_apart_with_probability_alpha_at_most(
    some_prompts: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffle_test, "SAMPLE_PROMPTS", 64)
    prompts, alpha, trials = some_prompts(500), 0.1, 200
    orders = [np.random.default_rng(seed).permutation(len(prompts)) for seed in range(trials)]
    refused = sum(
        not shuffle_like(order, prompts, alpha=alpha, shuffles=199, seed=s)[0] for s, order in enumerate(orders)
    )
    assert refused <= stats.binom.ppf(0.999, trials, alpha)


@pytest.mark.parametrize("labelled", [True, False])
def test_a_grouped_file_is_caught_with_and_without_labels(some_prompts: Make, labelled: bool) -> None:
    prompts = some_prompts(200, shuffled=False)
    like, p = shuffle_like(np.arange(200), prompts if labelled else without_labels(prompts))
    assert not like
    assert 0 < p < 0.01


def test_a_file_sorted_by_length_is_caught_by_length() -> None:
    random = np.random.default_rng(0)
    prompts = sorted(("".join(random.choice(list("abcdefgh "), n)) for n in random.integers(5, 200, 150)), key=len)
    p_values = neighbour_tests(np.arange(150), prompts)
    assert p_values["length"] < 0.01
    assert not shuffle_like(np.arange(150), prompts)[0]


@pytest.mark.parametrize("window", [16, 50])
def test_a_file_of_sorted_windows_is_caught(some_prompts: Make, window: int) -> None:
    prompts = some_prompts(400)
    order = expert_friendly_order(prompts, "label", window=window)
    assert not shuffle_like(order.permutation, without_labels(prompts))[0]


def test_domains_dealt_in_turn_are_no_shuffle(some_prompts: Make) -> None:
    groups = itertools.groupby(some_prompts(200, shuffled=False), key=lambda prompt: prompt["label"])
    dealt = [prompt for turn in zip(*(list(group) for _, group in groups), strict=True) for prompt in turn]
    assert not shuffle_like(np.arange(200), dealt)[0]


def test_a_weak_grouping_of_a_long_file_is_caught_from_a_sample(some_prompts: Make) -> None:
    prompts = some_prompts(1000)
    rows = np.tile(np.arange(1000), 40)  # 40,000 prompts
    labels = [prompts[i]["label"] for i in rows]
    view = PromptView([str(i) for i in range(len(rows))], labels, lambda i: prompts[rows[i]]["text"])
    random = np.random.default_rng(0)
    shuffled = random.permutation(len(rows))
    assert shuffle_like(shuffled, view)[0]
    # A fifth of the prompts are followed by one of their own label.
    codes = np.array(labels)
    weak = shuffled.copy()
    for k in random.choice(len(rows) // 2, len(rows) // 10, replace=False) * 2:
        later = next((j for j in range(k + 1, min(k + 60, len(rows))) if codes[weak[j]] == codes[weak[k]]), k + 1)
        weak[[k + 1, later]] = weak[[later, k + 1]]
    assert not shuffle_like(weak, view)[0]


def test_only_the_sampled_texts_are_read(some_prompts: Make) -> None:
    read: list[int] = []

    def text(i: int) -> str:
        read.append(i)
        return "some words"

    n = 200_000
    shuffle_like(np.arange(n), PromptView([""] * n, [None] * n, text))
    assert 0 < len(read) <= shuffle_test.SAMPLE_PROMPTS


def test_the_answer_is_the_same_for_the_same_seed(some_prompts: Make) -> None:
    prompts = some_prompts(80)
    order = np.random.default_rng(5).permutation(80)
    answer = shuffle_like(order, prompts, seed=1)
    assert answer == shuffle_like(order, prompts, seed=1)
    assert [type(part) for part in answer] == [bool, float]  # they go into JSON


@pytest.mark.parametrize("prompts", [[], ["a"], ["a", "b"], ["same"] * 50, [""] * 50])
def test_where_there_is_nothing_to_tell_by_an_order_is_like_a_shuffle(prompts: list[str]) -> None:
    assert shuffle_like(np.arange(len(prompts)), prompts) == (True, 1.0)
