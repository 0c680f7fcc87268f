"""A uniformly random order: what every gain is measured against."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.orders.ranking import NOTHING, Ranking, WindowState
from orderproof.orders.view import PromptView
from orderproof.signals.registry import Progress


def shuffle(prompts: int, seed: int, window: int = 0) -> NDArray[np.int64]:
    """int64[prompts]: which prompt is sent k-th. Knows their number alone, so that anyone can make it again.

    Windows draw from streams of their own, of which the first is the whole file's.
    """
    return np.random.Generator(np.random.PCG64(seed).jumped(window)).permutation(prompts)


def rank(
    prompts: PromptView, spec: OrderSpec, progress: Progress | None = None, carried: WindowState = NOTHING
) -> Ranking:
    """`shuffle`: the k-th prompt of numpy's `Generator(PCG64(seed)).permutation(N)` gets rank k."""
    permutation = shuffle(len(prompts), spec.seed, carried.windows)
    ranks = np.empty(len(prompts), np.int64)
    ranks[permutation] = np.arange(len(prompts))
    return Ranking(ranks, seeds={"shuffle": spec.seed})
