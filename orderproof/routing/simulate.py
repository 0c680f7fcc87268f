"""A simulated pass: what each step runs and reads, its experts per layer and its time.

Replicas take contiguous shares of equal predicted work, as the engine shares them, and end together, because the
engine rebalances them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import BATCHED_TOKENS, Job
from orderproof.routing.predicted_work import equal_shares, predicted_work
from orderproof.routing.replay import SimRequest, replay
from orderproof.routing.route_source import CapturedRoutes, RouteSource
from orderproof.routing.routes import Routes
from orderproof.routing.step_costs import StepCosts


@dataclass(frozen=True)
class EngineShape:
    """The engine that a simulation assumes."""

    batch: int  # sequences at once, of each replica
    batched_tokens: int = BATCHED_TOKENS
    devices: int = 1  # over which a replica's experts are spread, each expert whole
    replicas: int = 1

    @classmethod
    def of(cls, job: Job) -> EngineShape:
        """The engine of a job.

        vLLM spreads experts over the ranks of tensor and data parallelism together; without `enable_expert_parallel`
        each device holds a slice of every expert, and all devices wait for each other alike.
        """
        args = job.engine.args
        ranks = int(args.get("tensor_parallel_size", 1)) * int(args.get("data_parallel_size", 1))
        return cls(
            job.engine.max_num_seqs,
            job.engine.max_num_batched_tokens,
            ranks if args.get("enable_expert_parallel") else 1,
            job.engine.replicas,
        )


@dataclass(frozen=True, eq=False)
class SimulatedPass:
    """The steps of one simulated pass, one replica's after the other's."""

    running: NDArray[np.int32]  # [steps]
    experts: NDArray[np.int64]  # [steps] Σ over layers
    prefill_tokens: NDArray[np.int32]  # [steps]
    layers: int
    replicas: int = 1

    @property
    def steps(self) -> float:
        """Of each replica, on average."""
        return len(self.experts) / self.replicas

    @property
    def experts_per_layer(self) -> float:
        """Distinct experts that a step reads in a layer, on average."""
        return float(self.experts.mean()) / self.layers

    def wall_s(self, costs: StepCosts) -> float:
        return float(costs.ms(self.running, self.experts, self.prefill_tokens).sum()) / 1000 / self.replicas


def simulate_pass(requests: Iterable[SimRequest], source: RouteSource, shape: EngineShape) -> SimulatedPass:
    """Replay one pass of at least one request."""
    shares = share_requests(list(requests), shape.replicas) if shape.replicas > 1 else [requests]
    limits = (shape.batch, shape.batched_tokens, shape.devices)
    chunks = [chunk for share in shares for chunk in replay(share, source, *limits)]
    names = ("running", "experts", "prefill_tokens")
    running, experts, prefill_tokens = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in names)
    return SimulatedPass(running, experts, prefill_tokens, source.layers, shape.replicas)


def share_requests(requests: Sequence[SimRequest], replicas: int) -> list[Sequence[SimRequest]]:
    """Contiguous shares of equal predicted work; a prompt's tokens count once for all its samples."""
    read = [request.prompt_tokens if request.sample == 0 else 0 for request in requests]
    work = predicted_work(read, [request.generated for request in requests])
    return [requests[share.start : share.stop] for share in equal_shares(work, replicas)]


def simulate_captured(
    routes: Routes, places: Iterable[int], shape: EngineShape, samples: Mapping[int, int] | None = None
) -> SimulatedPass:
    """Replay captured prompts with the lengths that were captured.

    Args:
        places: of the prompts in `routes`, in the order of sending.
        samples: how many samples of each prompt are generated, by place; prompts left out have one.
    """
    requests = (
        SimRequest(place, int(routes.prompt_tokens[place]), int(routes.decode_tokens[place]) + 1, sample)
        for place in places
        for sample in range((samples or {}).get(place, 1))
    )
    return simulate_pass(requests, CapturedRoutes(routes, np.arange(len(routes))), shape)
