"""Purity of an order: how far neighbouring prompts have the same label, where labels are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RUN_PROMPTS = 32  # a usual batch


def purity(permutation: NDArray[np.int64], labels: Sequence[str | None], run: int = RUN_PROMPTS) -> float | None:
    """Share of prompts that have the most common label of the run of neighbours they are sent in.

    This is the purity of clusters (Manning, Raghavan & Schütze, 2008, chapter 16.3) with each run of `run` prompts as
    a cluster, so any order can be compared with any other, whether it has clusters or not.

    Returns:
        0 to 1; None with fewer than two different labels, or if a prompt has none.
    """
    codes_of: dict[str | None, int] = {}
    codes = np.fromiter((codes_of.setdefault(label, len(codes_of)) for label in labels), np.int64, len(labels))
    if None in codes_of or len(codes_of) < 2:
        return None
    runs = np.arange(len(codes)) // run
    pairs, counts = np.unique(runs * len(codes_of) + codes[permutation], return_counts=True)
    most_common = np.zeros(runs[-1] + 1, np.int64)
    np.maximum.at(most_common, pairs // len(codes_of), counts)
    return float(most_common.sum() / len(codes))
