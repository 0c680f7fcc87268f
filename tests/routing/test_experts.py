"""Sets and frequencies of experts are those of counting one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderproof.routing.experts import bit_sets, distinct, frequencies, words


def drawn(seed: int, tokens: int, layers: int, experts: int, top_k: int) -> np.ndarray:
    """Distinct experts for every token and layer."""
    noise = np.random.default_rng(seed).random((tokens, layers, experts))
    return np.argsort(noise, axis=-1)[..., :top_k].astype(np.uint16)


@given(st.integers(0, 999), st.integers(1, 5), st.integers(1, 3), st.sampled_from([2, 63, 64, 65, 128, 300]))
def test_the_union_of_bit_sets_holds_exactly_the_experts_chosen(
    seed: int, tokens: int, layers: int, experts: int
) -> None:
    chosen = drawn(seed, tokens, layers, experts, min(experts, 8))
    union = np.bitwise_or.reduce(bit_sets(chosen, experts), axis=0)
    assert union.shape == (layers, words(experts))
    for layer in range(layers):
        members = {e for e in range(experts) if int(union[layer, e // 64]) >> (e % 64) & 1}
        assert members == set(chosen[:, layer].ravel().tolist())
        assert distinct(union)[layer] == len(members)


def test_frequencies_are_shares_of_each_layers_choices() -> None:
    chosen = np.array([[[0, 1], [2, 3]], [[0, 2], [2, 3]]], np.uint8)
    expected = [[0.5, 0.25, 0.25, 0], [0, 0, 0.5, 0.5]]
    assert frequencies(chosen, 4).reshape(2, 4) == pytest.approx(np.array(expected))
    assert frequencies(chosen, 4).dtype == np.float32


def test_frequencies_of_no_token_are_zero() -> None:
    assert frequencies(np.empty((0, 2, 2), np.uint8), 4).tolist() == [0.0] * 8
