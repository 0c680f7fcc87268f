"""Any order, within windows: for jobs whose prompts must not wait for the whole file.

In: ranks and a window. Out: a permutation. Knows nothing of how the ranks came about.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def sort_within(ranks: NDArray[np.int64], window: int | None) -> NDArray[np.int64]:
    """Sort by rank, stably, within each `window` consecutive prompts of the file (None: within the file).

    Every second window is sorted the other way round, so that where two windows meet the same or similar prompts touch,
    as they do inside a window.

    Returns:
        int64[N]: the permutation; prompts never leave their window.
    """
    number = np.arange(len(ranks)) // (window or max(1, len(ranks)))
    turned = np.where(number % 2, -ranks, ranks)
    permutation: NDArray[np.int64] = np.lexsort((turned, number))  # by the last key first; stable
    return permutation
