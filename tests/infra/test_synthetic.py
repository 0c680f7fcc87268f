"""Made-up routes have the statistics of the shape that was asked for, again and again."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import RoutingShape, SyntheticRoutes, draw_tokens, statistics_of

from orderproof.routing.experts import bit_sets, distinct

SHAPE = RoutingShape(layers=6, experts=64, top_k=4, domains=3, common=0.5, own=1.2)


def test_every_token_has_top_k_distinct_experts() -> None:
    chosen = draw_tokens(SHAPE, 200, seed=0)
    assert (chosen.shape, chosen.dtype) == ((3, 200, 6, 4), np.uint8)
    assert (distinct(bit_sets(chosen, 64)) == 4).all()
    assert np.array_equal(chosen, draw_tokens(SHAPE, 200, seed=0))
    assert not np.array_equal(chosen, draw_tokens(SHAPE, 200, seed=1))


def test_an_expert_is_chosen_first_in_proportion_to_its_weight() -> None:
    even = RoutingShape(layers=1, experts=8, top_k=1, domains=1, common=0.0, own=0.0)
    counts = np.bincount(draw_tokens(even, 8000, seed=0).ravel(), minlength=8)
    assert abs(counts - 1000).max() < 4 * np.sqrt(1000)


def test_a_request_has_the_same_routes_whenever_it_is_asked_for_and_no_other_has_them() -> None:
    first, again = (SyntheticRoutes(SHAPE, lambda number: number % 3, seed=0, pool=500) for _ in range(2))
    assert np.array_equal(first.decode(7, 20), again.decode(7, 20))
    assert not np.array_equal(first.decode(7, 20), first.decode(10, 20))
    assert np.array_equal(first.prefill(7, 0, 9), again.prefill(7, 0, 9))
    assert first.decode(7, 20).shape == (20, 6, 1)
    assert (distinct(first.decode(7, 20)) == 4).all()


def test_batches_of_its_requests_have_the_statistics_of_the_shape() -> None:
    source = SyntheticRoutes(SHAPE, lambda number: number % 3, seed=0)
    batch = np.stack([source.decode(number, 400) for number in range(12)])  # [requests, tokens, layers, words]
    mixed = distinct(np.bitwise_or.reduce(batch, axis=0)).mean()
    single = [distinct(np.bitwise_or.reduce(batch[domain::3], axis=0)).mean() for domain in range(3)]
    assert mixed == pytest.approx(statistics_of(SHAPE, 0, 12).mixed, rel=0.02)
    assert single == pytest.approx(statistics_of(SHAPE, 0, 4).single, rel=0.02)
