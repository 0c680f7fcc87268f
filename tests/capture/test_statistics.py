"""What batches touch, held against probability theory and brute force."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from orderproof.capture.statistics import RoutingTable, routing_table
from orderproof.routing.routes import PromptRoutes

LAYERS, EXPERTS, TOP_K = 3, 32, 4
SHAPE = (LAYERS, EXPERTS, TOP_K)


def drawn(random: np.random.Generator, tokens: int, pool: np.ndarray) -> np.ndarray:
    """[tokens, layers, top_k]: different experts of the pool for each token and layer, all alike likely."""
    keys = random.random((tokens, LAYERS, len(pool)))
    return pool[np.argsort(keys, axis=-1)[..., :TOP_K]].astype(np.uint8)


def prompts(per_group: int, groups: int, own: bool, tokens: int = 12) -> tuple[list[PromptRoutes], dict[str, str]]:
    """Prompts whose groups have eight experts each of their own, or share all. Prefill always goes to the last one."""
    random, routes, group_of = np.random.default_rng(0), [], {}
    for k in range(per_group * groups):
        group = k % groups
        pool = np.arange(8 * group, 8 * group + 8) if own else np.arange(EXPERTS)
        prefill = np.broadcast_to(np.arange(EXPERTS - TOP_K, EXPERTS, dtype=np.uint8), (5, LAYERS, TOP_K))
        routes.append(PromptRoutes(f"p{k}", 5, np.concatenate([prefill, drawn(random, tokens, pool)])))
        group_of[f"p{k}"] = f"g{group}"
    return routes, group_of


def table(per_group: int, groups: int, own: bool) -> RoutingTable:
    routes, group_of = prompts(per_group, groups, own)
    return routing_table(iter(routes), group_of, "label", SHAPE)


def expected_distinct(batch: int, pool: int) -> float:
    """Of `batch` independent tokens that each choose TOP_K of `pool` experts, all sets alike likely."""
    return pool * (1 - (1 - TOP_K / pool) ** batch)


def test_touched_experts_are_those_of_probability_theory() -> None:
    mixed = table(40, 4, own=False)
    separate = table(40, 4, own=True)
    for plain, grouped in zip(mixed.touched, separate.touched, strict=True):
        assert plain.mixed == pytest.approx(expected_distinct(plain.batch, EXPERTS), rel=0.02)
        assert plain.saved is None or abs(plain.saved) < 0.02, "groups that are none save nothing"
        if grouped.grouped is not None:
            assert grouped.grouped == pytest.approx(expected_distinct(grouped.batch, 8), rel=0.02)
            assert len(grouped.grouped_by_layer) == LAYERS


def test_prefill_is_not_counted_among_what_a_decode_step_touches() -> None:
    routes, group_of = prompts(8, 1, own=True)
    only = routing_table(iter(routes), group_of, "label", SHAPE)
    assert only.touched[0].mixed is not None
    assert only.touched[0].mixed <= 8


def test_a_group_smaller_than_the_batch_gives_no_figure_and_no_guess() -> None:
    small = table(20, 4, own=True)
    assert [(row.batch, row.groups, row.grouped is None) for row in small.touched] == [
        (8, 4, False),
        (16, 4, False),
        (32, 0, True),
        (64, 0, True),
        (128, 0, True),
    ]
    assert [row.mixed is None for row in small.touched] == [False, False, False, False, True]


def test_a_group_with_experts_of_its_own_sends_all_its_traffic_there() -> None:
    separate = table(20, 4, own=True)
    assert separate.favourite_share == 1
    assert [group.favourite_share for group in separate.groups] == [1, 1, 1, 1]
    assert separate.favourite_share_mixed == pytest.approx(0.25, abs=0.05)


def test_few_tokens_without_favourites_do_not_seem_to_have_any() -> None:
    """Named and counted on the same tokens, the busiest quarter would hold a third of so little traffic."""
    routes, group_of = prompts(4, 8, own=False, tokens=3)
    share = routing_table(iter(routes), group_of, "label", SHAPE).favourite_share
    assert share == pytest.approx(0.25, abs=0.06)


def test_a_prompt_that_never_decoded_is_left_out() -> None:
    routes, group_of = prompts(20, 2, own=True)
    routes[0] = dataclasses.replace(routes[0], experts=routes[0].prefill)
    assert routing_table(iter(routes), group_of, "label", SHAPE).prompts == 39


def test_a_job_of_single_tokens_has_an_empty_table() -> None:
    routes, group_of = prompts(4, 2, own=True)
    silent = [dataclasses.replace(prompt, experts=prompt.prefill) for prompt in routes]
    empty = routing_table(iter(silent), group_of, "label", SHAPE)
    assert empty.prompts == 0
    assert empty.favourite_share is None
    assert all(row.mixed is None and row.grouped is None for row in empty.touched)


def test_the_same_seed_gives_the_same_table() -> None:
    assert table(20, 4, own=False) == table(20, 4, own=False)
