"""A pass, replayed and added up.

In: requests' lengths in the order of sending, a `RouteSource`, and the engine that is asked about. Out: a `Tally`: what
each step ran and read, and from that its experts per layer and its time. Knows nothing of orders or trials.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orderproof.tasks.jobs import Job
from orderproof.tasks.routing.admission import BATCHED_TOKENS
from orderproof.tasks.routing.replay import Load, replay
from orderproof.tasks.routing.routes import Routes
from orderproof.tasks.routing.source import CapturedRoutes, RouteSource
from orderproof.tasks.routing.step_costs import StepCosts


@dataclass(frozen=True)
class Setting:
    """The engine that is asked about."""

    batch: int
    batched_tokens: int = BATCHED_TOKENS
    devices: int = 1

    @classmethod
    def of(cls, job: Job) -> Setting:
        """The engine that a job asks for."""
        args = job.engine.args
        return cls(job.engine.max_num_seqs, int(args.get("max_num_batched_tokens") or BATCHED_TOKENS))


@dataclass(frozen=True, eq=False)
class Tally:
    """The steps of one replayed pass."""

    running: NDArray[np.int32]  # [steps]
    experts: NDArray[np.int64]  # [steps] Σ over layers
    prefill_tokens: NDArray[np.int32]  # [steps]
    layers: int

    @property
    def experts_per_layer(self) -> float:
        """Distinct experts that a step touches in a layer, on average."""
        return float(self.experts.mean()) / self.layers

    def wall_s(self, costs: StepCosts) -> float:
        return float(costs.ms(self.running, self.experts, self.prefill_tokens).sum()) / 1000


def tally(loads: Iterable[Load], source: RouteSource, setting: Setting) -> Tally:
    """Replay one pass of at least one request."""
    lots = list(replay(loads, source, setting.batch, setting.batched_tokens, setting.devices))
    names = ("running", "experts", "prefill_tokens")
    running, experts, prefill_tokens = (np.concatenate([getattr(lot, name) for lot in lots]) for name in names)
    return Tally(running, experts, prefill_tokens, source.layers)


def tally_captured(routes: Routes, sent: Iterable[int], setting: Setting) -> Tally:
    """Replay captured prompts with their own lengths, by their places in `routes` in the order of sending."""
    loads = (Load(k, int(routes.prompt_tokens[k]), int(routes.decode_tokens[k]) + 1) for k in sent)
    return tally(loads, CapturedRoutes(routes, np.arange(len(routes))), setting)
