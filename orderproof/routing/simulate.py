"""A pass, replayed and added up.

In: requests' lengths in the order of sending, a `RouteSource`, and the engine that is asked about. Out: a `Tally`: what
each step ran and read, and from that its experts per layer and its time. Knows nothing of orders or trials.

Replicas take contiguous shares of equal work, as the engine's own sharing deals them, and end together, as its
rebalancing sees to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import BATCHED_TOKENS, Job
from orderproof.routing.replay import Load, replay
from orderproof.routing.route_source import CapturedRoutes, RouteSource
from orderproof.routing.routes import Routes
from orderproof.routing.step_costs import StepCosts


@dataclass(frozen=True)
class EngineShape:
    """The engine that is asked about."""

    batch: int  # of each replica
    batched_tokens: int = BATCHED_TOKENS
    devices: int = 1  # over which a replica's experts are spread, whole
    replicas: int = 1

    @classmethod
    def of(cls, job: Job) -> EngineShape:
        """The engine that a job asks for. vLLM spreads experts over the ranks of tensor and data parallelism together;
        without `enable_expert_parallel` each device holds a slice of every expert, which is no choice among devices."""
        args = job.engine.args
        ranks = int(args.get("tensor_parallel_size", 1)) * int(args.get("data_parallel_size", 1))
        return cls(
            job.engine.max_num_seqs,
            job.engine.max_num_batched_tokens,
            ranks if args.get("enable_expert_parallel") else 1,
            job.engine.replicas,
        )


@dataclass(frozen=True, eq=False)
class Tally:
    """The steps of one replayed pass, one replica's after the other's."""

    running: NDArray[np.int32]  # [steps]
    experts: NDArray[np.int64]  # [steps] Σ over layers
    prefill_tokens: NDArray[np.int32]  # [steps]
    layers: int
    replicas: int = 1

    @property
    def steps(self) -> float:
        """Of each replica."""
        return len(self.experts) / self.replicas

    @property
    def experts_per_layer(self) -> float:
        """Distinct experts that a step touches in a layer, on average."""
        return float(self.experts.mean()) / self.layers

    def wall_s(self, costs: StepCosts) -> float:
        return float(costs.ms(self.running, self.experts, self.prefill_tokens).sum()) / 1000 / self.replicas


def tally(loads: Iterable[Load], source: RouteSource, setting: EngineShape) -> Tally:
    """Replay one pass of at least one request."""
    shares = _shares(list(loads), setting.replicas) if setting.replicas > 1 else [loads]
    size = (setting.batch, setting.batched_tokens, setting.devices)
    lots = [lot for share in shares for lot in replay(share, source, *size)]
    names = ("running", "experts", "prefill_tokens")
    running, experts, prefill_tokens = (np.concatenate([getattr(lot, name) for lot in lots]) for name in names)
    return Tally(running, experts, prefill_tokens, source.layers, setting.replicas)


def _shares(loads: Sequence[Load], replicas: int) -> list[Sequence[Load]]:
    """Contiguous ones of equal work."""
    until = np.cumsum([0, *(load.prompt_tokens + load.generated for load in loads)])  # work before each
    cuts = np.searchsorted(until, until[-1] * np.arange(1, replicas) / replicas).tolist()
    return [loads[start:stop] for start, stop in pairwise([0, *cuts, len(loads)])]


def tally_captured(
    routes: Routes, sent: Iterable[int], setting: EngineShape, samples: Mapping[int, int] | None = None
) -> Tally:
    """Replay captured prompts with their own lengths, by their places in `routes` in the order of sending.

    Args:
        samples: how many of each are generated, by place; those left out: one.
    """
    loads = (
        Load(k, int(routes.prompt_tokens[k]), int(routes.decode_tokens[k]) + 1, sample)
        for k in sent
        for sample in range((samples or {}).get(k, 1))
    )
    return tally(loads, CapturedRoutes(routes, np.arange(len(routes))), setting)
