"""How pure an order keeps its neighbours, where the truth is known.

In: labels in the order of sending. Out: a share. Knows nothing of how an order was made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RUN_PROMPTS = 32  # a usual batch


def purity(permutation: NDArray[np.int64], labels: Sequence[str | None], run: int = RUN_PROMPTS) -> float | None:
    """Share of prompts that have the commonest label of the run of neighbours they are sent in.

    The purity of clusters (Manning, Raghavan & Schütze, 2008, chapter 16.3), each run of `run` prompts taken as one:
    so any order can be compared with any other, whether it has clusters or not.

    Returns:
        0 to 1; None without at least two kinds of labels, or where a prompt has none.
    """
    kinds: dict[str | None, int] = {}
    codes = np.fromiter((kinds.setdefault(label, len(kinds)) for label in labels), np.int64, len(labels))
    if None in kinds or len(kinds) < 2:
        return None
    runs = np.arange(len(codes)) // run
    pairs, counts = np.unique(runs * len(kinds) + codes[permutation], return_counts=True)
    commonest = np.zeros(runs[-1] + 1, np.int64)
    np.maximum.at(commonest, pairs // len(kinds), counts)
    return float(commonest.sum() / len(codes))
