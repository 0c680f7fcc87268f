"""Prompts in the cluster order, with the probability that a step of each uses each expert.

It is what the methods `greedy` and `exchange` begin with, which add up expected experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.orders import cluster
from orderproof.orders.order import OrderError
from orderproof.orders.ranking import Ranking, WindowState
from orderproof.orders.view import PromptView
from orderproof.signals import registry
from orderproof.signals.predictor import probabilities
from orderproof.signals.predictor_file import predictor_of
from orderproof.signals.registry import ROUTING_SIGNALS

MAX_PROBABILITY = 0.99  # of an expert; 1 would give an infinite logarithm and a division by zero


@dataclass(frozen=True, eq=False)
class ExpertProbabilities:
    """N prompts in the cluster order."""

    indices: NDArray[np.int64]  # [N], in the file
    chunks: Iterator[NDArray[np.float32]]  # of [prompts, layers · experts], in the cluster order
    clustered: Ranking

    def ranking_of(self, row: NDArray[np.int64]) -> Ranking:
        """The ranking by which prompt `row[k]` of the cluster order is sent k-th; ranks begin at 0 in each window."""
        ranks = np.empty(len(self.indices), np.int64)
        ranks[self.indices[row]] = np.arange(len(self.indices))
        return replace(self.clustered, ranks=ranks, previous_rank=0)


def expert_probabilities(prompts: PromptView, spec: OrderSpec, state: WindowState) -> ExpertProbabilities:
    """Put prompts in the cluster order and estimate their experts.

    Raises:
        OrderError: the signal does not describe experts.
        SignalError: no routes were captured.
    """
    if spec.signal not in ROUTING_SIGNALS:
        raise OrderError(
            f"the method `{spec.method}` adds up experts, and the signal {spec.signal!r} does not describe experts: "
            f"set `signal` to {' or '.join(ROUTING_SIGNALS)}, or use the method `cluster`"
        )
    clustered = cluster.rank(prompts, spec, replace(state, last_rank=None))
    signal, record = registry.load(spec, prompts.served), predictor_of(prompts.served, spec.signal).record
    indices = np.argsort(clustered.ranks, kind="stable")
    chunks = (probabilities(rows, record.top_k) for rows in registry.features(signal, prompts, indices))
    return ExpertProbabilities(indices, chunks, clustered)
