"""Texts → hashed counts of letter triples. No model, no vocabulary, any language or script.

In: texts, streamed. Out: a sparse matrix, one unit row per text. Knows nothing of what it is used for.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from orderproof.tasks.signals import Progress

BUCKETS = 1 << 13
BATCH_TEXTS = 4096


def features(texts: Iterable[str], *, total: int | None = None, progress: Progress | None = None) -> Any:
    """Square roots of the counts of character trigrams within words, scaled to unit length.

    The scalar product of two rows is then the Bhattacharyya coefficient of the texts' trigram distributions, between 0
    and 1: unlike plain counts, it is not ruled by the few commonest trigrams of a language.

    Returns:
        scipy CSR float32[texts, BUCKETS]; a row of zeros for a text without a printable character.
    """
    import numpy as np
    from scipy import sparse
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(
        analyzer="char_wb", ngram_range=(3, 3), n_features=BUCKETS, alternate_sign=False, norm="l1", dtype=np.float32
    )
    remaining, pieces, done = iter(texts), [sparse.csr_matrix((0, BUCKETS), dtype=np.float32)], 0
    while batch := list(islice(remaining, BATCH_TEXTS)):
        shares = vectorizer.transform(batch)
        shares.data = np.sqrt(shares.data)  # shares add up to 1, so their roots have length 1
        pieces.append(shares)
        done += len(batch)
        if progress:
            progress(done, total)
    return sparse.vstack(pieces, format="csr")
