"""The method `shuffled`: a uniformly random order, which every gain is measured against."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.orders.ranking import FIRST_WINDOW, Ranking, WindowState
from orderproof.orders.view import PromptView


def shuffle(prompts: int, seed: int, window: int = 0) -> NDArray[np.int64]:
    """int64[prompts]: which prompt is sent k-th; it depends on nothing but the arguments.

    Each window draws from a stream of its own; the first window's is that of a whole file.
    """
    return np.random.Generator(np.random.PCG64(seed).jumped(window)).permutation(prompts)


def rank(prompts: PromptView, spec: OrderSpec, state: WindowState = FIRST_WINDOW) -> Ranking:
    """Give rank k to the k-th prompt of `shuffle`: numpy's `Generator(PCG64(seed)).permutation(N)`."""
    permutation = shuffle(len(prompts), spec.seed, state.windows)
    ranks = np.empty(len(prompts), np.int64)
    ranks[permutation] = np.arange(len(prompts))
    return Ranking(ranks, seeds={"shuffle": spec.seed})
