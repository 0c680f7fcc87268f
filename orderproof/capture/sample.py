"""Which prompts of a job are captured, and which group each belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.orders import cluster
from orderproof.orders.view import view_of
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.signals.served_model import UNKNOWN_MODEL, ServedModel

LEAST_PROMPTS = 4096  # predictions improve with each doubling (infra/bench/learning.py); a capture takes minutes
LEAST_BATCHES = 32  # so that the batch is full most of the time


def sample_size(prompts: int, batch: int) -> int:
    """How many of a job's prompts to capture, if they run in batches of `batch`."""
    return min(prompts, max(LEAST_PROMPTS, LEAST_BATCHES * batch))


def stratified(prompts: int, size: int, seed: int) -> NDArray[np.int64]:
    """One prompt from each of `size` equally long parts of the file, drawn by `seed`.

    Returns:
        int64[size]: places in the file, ascending; all places if the file has no more.
    """
    if size >= prompts:
        return np.arange(prompts)
    edges = np.arange(size + 1) * prompts // size
    return np.random.default_rng(seed).integers(edges[:-1], edges[1:])


def groups_of(
    prompts: TokenizedPrompts, spec: OrderSpec, served: ServedModel = UNKNOWN_MODEL
) -> tuple[str, Sequence[str]]:
    """Groups of similar prompts: their labels, or clusters where a label is missing or all are the same.

    Returns:
        The kind of group (`label` or `cluster`), and each prompt's group.

    Raises:
        OrderError, SignalError: the clusters cannot be made.
    """
    labels = [label for label in prompts.labels if label is not None]
    if len(labels) == len(prompts) and len(set(labels)) > 1:
        return "label", labels
    places = cluster.rank(view_of(prompts, served), spec).ranks
    return "cluster", [f"cluster {place:02d}" for place in places.tolist()]
