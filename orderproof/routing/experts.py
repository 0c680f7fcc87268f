"""The experts of tokens as bit sets uint64[..., words], whose union is one `|`, and as frequencies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 64

ExpertIds = NDArray[np.uint8] | NDArray[np.uint16]
BitSets = NDArray[np.uint64]


def words(experts: int) -> int:
    """How many 64-bit words hold one bit per expert of a layer."""
    return -(-experts // WORD_BITS)


def bit_sets(chosen: ExpertIds, experts: int) -> BitSets:
    """The set of experts that each token chose in each layer.

    Args:
        chosen: [..., top_k] expert numbers, each below `experts`.

    Returns:
        uint64[..., words(experts)]: bit e % 64 of word e // 64 stands for expert e.
    """
    number = np.arange(experts)
    bits = np.left_shift(np.uint64(1), (number % WORD_BITS).astype(np.uint64))
    sets = np.zeros((*chosen.shape[:-1], words(experts)), np.uint64)
    for word in range(words(experts)):
        word_bits = np.where(number // WORD_BITS == word, bits, np.uint64(0))
        for choice in range(chosen.shape[-1]):  # one-dimensional look-ups are twice as fast as rows of a table
            sets[..., word] |= word_bits.take(chosen[..., choice])
    return sets


def distinct(sets: BitSets) -> NDArray[np.int64]:
    """How many experts are in each set: int64[...] from uint64[..., words]."""
    counts: NDArray[np.int64] = np.bitwise_count(sets).sum(axis=-1, dtype=np.int64)
    return counts


def frequencies(chosen: ExpertIds, experts: int) -> NDArray[np.float32]:
    """How often tokens chose each expert of each layer.

    Args:
        chosen: [tokens, layers, top_k] expert numbers.

    Returns:
        float32[layers · experts]: shares of a layer's choices, so that every layer's sum to 1; all 0 without tokens.
    """
    tokens, layers, top_k = chosen.shape
    place = chosen.astype(np.int64) + experts * np.arange(layers)[:, None]
    counts = np.bincount(place.ravel(), minlength=layers * experts)
    shares: NDArray[np.float32] = (counts / max(1, tokens * top_k)).astype(np.float32)
    return shares
