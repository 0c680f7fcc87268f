"""Prompts in the cluster order, each as a probability per expert and layer that a step of it uses that expert.

In: prompts, and a routing signal. Out: the rows, chunk by chunk, for the orders that add experts up. Knows nothing of
how they do.
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
from orderproof.signals.prediction import predictor_of, probabilities
from orderproof.signals.registry import ROUTING_SIGNALS, Progress

MOST_LIKELY = 0.99  # a sure expert's logarithm would have no end, and what is left of its chance to be idle no inverse


@dataclass(frozen=True, eq=False)
class Offered:
    """N prompts in the cluster order."""

    places: NDArray[np.int64]  # [N], in the file
    likely: Iterator[NDArray[np.float32]]  # chunks of [prompts, layers · experts], in that order
    grouped: Ranking

    def ranked(self, row: NDArray[np.int64]) -> Ranking:
        """The ranking by which the prompt that was offered `row[k]`-th is sent k-th, in each window from 0."""
        ranks = np.empty(len(self.places), np.int64)
        ranks[self.places[row]] = np.arange(len(self.places))
        return replace(self.grouped, ranks=ranks, follows=0)


def offered(prompts: PromptView, spec: OrderSpec, progress: Progress | None, carried: WindowState) -> Offered:
    """Group prompts, and foretell their experts.

    Raises:
        OrderError: the signal tells nothing of experts.
        SignalError: no routes were captured.
    """
    if spec.signal not in ROUTING_SIGNALS:
        raise OrderError(
            f"the order `{spec.method}` adds up experts, and the signal {spec.signal!r} tells of none: set `signal` to "
            f"{' or '.join(ROUTING_SIGNALS)}, or use the method `cluster`"
        )
    grouped = cluster.rank(prompts, spec, progress, replace(carried, last=None))
    signal, record = registry.load(spec, prompts.served), predictor_of(prompts.served, spec.signal).record
    places = np.argsort(grouped.ranks, kind="stable")
    likely = (probabilities(rows, record.top_k) for rows in registry.features(signal, prompts, places))
    return Offered(places, likely, grouped)
