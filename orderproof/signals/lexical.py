"""The signal `lexical`: hashed counts of character trigrams, for any language or script, without a model.

Trigrams are hashed in whole arrays, not word by word: a million prompts of 250 characters take half a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orderproof.job.spec import OrderSpec
from orderproof.signals.registry import Signal, texts_of
from orderproof.signals.served_model import ServedModel

BUCKETS_LOG2 = 13
BUCKETS = 1 << BUCKETS_LOG2
CHARACTER_BITS = 21  # of Unicode
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: Knuth's multiplicative hashing
SPACE = ord(" ")


def load(spec: OrderSpec, served: ServedModel) -> Signal:
    """Needs nothing to load."""
    return lambda prompts, indices: features(texts_of(prompts, indices))


def features(texts: Sequence[str]) -> Any:
    """Square roots of the counts of character trigrams within words, scaled to unit length.

    Words are separated by white space and get a space at either end; case is ignored. The scalar product of two rows is
    the Bhattacharyya coefficient of the texts' trigram distributions, between 0 and 1; unlike plain counts, it is not
    dominated by the most common trigrams of a language.

    Returns:
        scipy CSR float32[texts, BUCKETS]; a row of zeros for a text without a printable character.
    """
    from scipy import sparse

    words = [f" {' '.join(text.lower().split())} " for text in texts]
    characters = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    ends = np.cumsum([len(text) for text in words], dtype=np.int64)
    if not len(characters):
        return sparse.csr_matrix((0, BUCKETS), dtype=np.float32)
    inside = np.flatnonzero(characters[1:-1] != SPACE)  # middles of triples; the others would span two words or texts
    triples = characters[inside] << np.uint64(2 * CHARACTER_BITS)
    triples |= characters[inside + 1] << np.uint64(CHARACTER_BITS)
    triples |= characters[inside + 2]
    buckets = (triples * MULTIPLIER) >> np.uint64(64 - BUCKETS_LOG2)
    starts = np.concatenate([np.zeros(1, np.int64), np.searchsorted(inside + 1, ends)]).astype(np.int32)
    totals = np.diff(starts)
    ones = np.ones(len(buckets), np.float32)
    counts = sparse.csr_matrix((ones, buckets.astype(np.int32), starts), (len(texts), BUCKETS))
    counts.sum_duplicates()
    # Shares add up to 1, so their roots have length 1.
    counts.data = np.sqrt(counts.data / np.repeat(totals, np.diff(counts.indptr)).astype(np.float32))
    return counts
