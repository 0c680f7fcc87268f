"""What an order would gain: the captured prompts replayed in it, beside shuffles of them.

In: captured prompts with their routes, orders of them, and what a step costs. Out: a `Prediction` per order. Knows
nothing of jobs, signals or trials; runs no model.

The gain of an order is wall(shuffled) / wall(order) − 1, where a pass's wall is the sum of its steps' costs. Its
interval holds two things that are not known: the cost of an expert (the fit's standard error) and which shuffle it is
compared with. What an order learned from the very prompts that it is asked of is taken off (`unlearned`). That a sample
thins the groups which a whole file has is not in it, and makes the prediction a low one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from orderproof.routing.replay import SimRequest
from orderproof.routing.route_source import RouteSource
from orderproof.routing.simulate import EngineShape, SimulatedPass, simulate_pass
from orderproof.routing.step_costs import StepCosts

SHUFFLES = 5
STANDARD_ERRORS = 2.0  # about 95 %


@dataclass(frozen=True)
class Prediction:
    """One order beside shuffles."""

    name: str
    gain: float  # a fraction
    low: float
    high: float
    experts_saved: float  # share of a shuffled step's distinct experts
    experts_per_layer: float


def predict(
    orders: Mapping[str, NDArray[np.int64]],
    loads: Sequence[Sequence[SimRequest]],
    source: RouteSource,
    setting: EngineShape,
    costs: StepCosts,
    expert_ms_se: float = 0.0,
    seed: int = 0,
) -> tuple[list[Prediction], float]:
    """Predict the gain of each order over a shuffle.

    Args:
        orders: name → int64[N], places in `loads` in the order of sending.
        loads: of each prompt, its samples.
        expert_ms_se: standard error of `costs.expert_ms`; what it takes from or gives to an expert is given to or taken
            from base, so that a shuffled pass keeps its time.

    Returns:
        Predictions in the order given, and the seconds of a shuffled pass.
    """
    random = np.random.default_rng(seed)

    def replayed(sent: NDArray[np.int64]) -> SimulatedPass:
        return simulate_pass((sample for k in sent.tolist() for sample in loads[k]), source, setting)

    shuffled = [replayed(random.permutation(len(loads))) for _ in range(SHUFFLES)]
    tallies = {name: replayed(sent) for name, sent in orders.items()}
    wall_s = float(np.mean([one.wall_s(costs) for one in shuffled]))
    return [_prediction(name, one, shuffled, costs, expert_ms_se) for name, one in tallies.items()], wall_s


def over(one: Prediction, today: Prediction) -> tuple[float, float, float]:
    """Gain, low and high over the order of today instead of over shuffled; the interval is that of `one` alone."""
    gain, low, high = ((1 + value) / (1 + today.gain) - 1 for value in (one.gain, one.low, one.high))
    return gain, low, high


def unlearned(one: Prediction, saved: float) -> Prediction:
    """What is left of a prediction for prompts that the order did not learn from.

    Args:
        saved: share of the experts that the same way to order saves of such prompts. The logarithm of the gain shrinks
            as the saving does; the upper bound stays, because the captured prompts are in the job, too, unless a loss
            shrinks to less than it.
    """
    if one.experts_saved <= 0:
        return one
    left = min(1.0, max(0.0, saved / one.experts_saved))
    gain, low = (math.expm1(left * math.log1p(value)) for value in (one.gain, one.low))
    return replace(one, gain=gain, low=min(low, one.low), high=max(gain, one.high))


def _prediction(
    name: str, ordered: SimulatedPass, shuffled: Sequence[SimulatedPass], costs: StepCosts, expert_ms_se: float
) -> Prediction:
    walls = np.array([one.wall_s(costs) for one in shuffled])
    ratio = math.log(walls.mean() / ordered.wall_s(costs))
    # A dearer expert and a cheaper base, or the other way round, at the shuffled pass's mean of experts per step.
    saved_experts = float(np.mean([one.experts.mean() for one in shuffled])) - float(ordered.experts.mean())
    slope = saved_experts * ordered.steps / (1000 * ordered.wall_s(costs))
    error = math.hypot(expert_ms_se * slope, float(np.log(walls).std(ddof=1)))
    before = float(np.mean([one.experts_per_layer for one in shuffled]))
    return Prediction(
        name,
        math.expm1(ratio),
        math.expm1(ratio - STANDARD_ERRORS * error),
        math.expm1(ratio + STANDARD_ERRORS * error),
        1 - ordered.experts_per_layer / before,
        ordered.experts_per_layer,
    )
