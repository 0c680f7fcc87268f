"""Which prompts are captured, and which of them belong together.

In: how many prompts a job has and how large its batch is; the sampled prompts. Out: their places in the file; a group
for each. Knows nothing of engines or routes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.orders import cluster
from orderproof.orders.view import view_of
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.signals.served_model import UNKNOWN_MODEL, ServedModel

LEAST_PROMPTS = 4096  # a prediction gains by each doubling (infra/bench/learning.py), and a capture takes minutes
LEAST_BATCHES = 32  # batches' worth of prompts: the sliding window is full most of the time


def sample_size(prompts: int, batch: int) -> int:
    """How many prompts to capture of a job of so many, run in batches of `batch`."""
    return min(prompts, max(LEAST_PROMPTS, LEAST_BATCHES * batch))


def stratified(prompts: int, size: int, seed: int) -> NDArray[np.int64]:
    """One prompt of each of `size` equally long runs of the file, drawn by `seed`: every part of it is represented.

    Returns:
        int64[size]: places in the file, ascending; all of them if there are no more.
    """
    if size >= prompts:
        return np.arange(prompts)
    edges = np.arange(size + 1) * prompts // size
    return np.random.default_rng(seed).integers(edges[:-1], edges[1:])


def groups_of(
    prompts: TokenizedPrompts, spec: OrderSpec, served: ServedModel = UNKNOWN_MODEL
) -> tuple[str, Sequence[str]]:
    """Which prompts are alike: by their labels, or by clusters where a label is missing or all are the same.

    Returns:
        What the groups are (`label` or `cluster`), and each prompt's group.

    Raises:
        OrderError, SignalError: the clusters cannot be made.
    """
    labels = [label for label in prompts.labels if label is not None]
    if len(labels) == len(prompts) and len(set(labels)) > 1:
        return "label", labels
    places = cluster.rank(view_of(prompts, served), spec).ranks
    return "cluster", [f"cluster {place:02d}" for place in places.tolist()]
