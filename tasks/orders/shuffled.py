"""A uniformly random order: what every gain is measured against."""

from __future__ import annotations

import numpy as np

from orderproof.tasks.jobs import OrderSpec
from orderproof.tasks.orders.ranking import Ranking
from orderproof.tasks.orders.view import PromptView
from orderproof.tasks.signals import Progress


def rank(prompts: PromptView, spec: OrderSpec, progress: Progress | None = None) -> Ranking:
    """The k-th prompt of numpy's `Generator(PCG64(seed)).permutation(N)` gets rank k."""
    permutation = np.random.Generator(np.random.PCG64(spec.seed)).permutation(len(prompts))
    ranks = np.empty(len(prompts), np.int64)
    ranks[permutation] = np.arange(len(prompts))
    return Ranking(ranks, seeds={"shuffle": spec.seed})
