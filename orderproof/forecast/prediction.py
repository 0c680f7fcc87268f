"""The predicted gain of an order: captured prompts simulated in it, compared with shuffles of them. No model runs.

The gain of an order is wall(shuffled) / wall(order) − 1, where a pass's wall time is the sum of its steps' costs. The
interval covers the cost of an expert (the fit's standard error) and the choice of the shuffle. An order that learned
from the very prompts that it is applied to is corrected for that (`shrink_to_unseen`). A sample has fewer prompts of
each group than the whole file; this is not corrected, and makes the prediction too low.
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
    """One order compared with shuffles."""

    name: str
    gain: float  # a fraction
    low: float
    high: float
    experts_saved: float  # share of a shuffled step's distinct experts
    experts_per_layer: float


def predict(
    orders: Mapping[str, NDArray[np.int64]],
    requests: Sequence[Sequence[SimRequest]],
    source: RouteSource,
    shape: EngineShape,
    costs: StepCosts,
    expert_ms_se: float = 0.0,
    seed: int = 0,
) -> tuple[list[Prediction], float]:
    """Predict the gain of each order over a shuffle.

    Args:
        orders: name → int64[N], places in `requests` in the order of sending.
        requests: the samples of each prompt.
        expert_ms_se: standard error of `costs.expert_ms`; base changes in the opposite direction, so that a shuffled
            pass keeps its time.

    Returns:
        Predictions in the order given, and the seconds of a shuffled pass.
    """
    random = np.random.default_rng(seed)

    def simulate(sent: NDArray[np.int64]) -> SimulatedPass:
        return simulate_pass((sample for k in sent.tolist() for sample in requests[k]), source, shape)

    shuffled = [simulate(random.permutation(len(requests))) for _ in range(SHUFFLES)]
    ordered = {name: simulate(sent) for name, sent in orders.items()}
    wall_s = float(np.mean([shuffle.wall_s(costs) for shuffle in shuffled]))
    predictions = [_prediction(name, passed, shuffled, costs, expert_ms_se) for name, passed in ordered.items()]
    return predictions, wall_s


def over_today(prediction: Prediction, today: Prediction) -> tuple[float, float, float]:
    """Gain, low and high over today's order instead of over shuffled; the interval is that of `prediction` alone."""
    bounds = (prediction.gain, prediction.low, prediction.high)
    gain, low, high = ((1 + value) / (1 + today.gain) - 1 for value in bounds)
    return gain, low, high


def shrink_to_unseen(prediction: Prediction, saved: float) -> Prediction:
    """The prediction for prompts that the order did not learn from.

    The logarithm of the gain shrinks in proportion to the experts saved. The upper bound stays, because the captured
    prompts are part of the job; if a loss shrinks, it rises with the gain.

    Args:
        saved: share of the experts that the same method saves on such prompts.
    """
    if prediction.experts_saved <= 0:
        return prediction
    kept = min(1.0, max(0.0, saved / prediction.experts_saved))
    gain, low = (math.expm1(kept * math.log1p(value)) for value in (prediction.gain, prediction.low))
    return replace(prediction, gain=gain, low=min(low, prediction.low), high=max(gain, prediction.high))


def _prediction(
    name: str, ordered: SimulatedPass, shuffled: Sequence[SimulatedPass], costs: StepCosts, expert_ms_se: float
) -> Prediction:
    walls = np.array([shuffle.wall_s(costs) for shuffle in shuffled])
    ratio = math.log(walls.mean() / ordered.wall_s(costs))
    # A more expensive expert with a cheaper base, or the reverse, at the shuffled passes' mean of experts per step.
    saved_experts = float(np.mean([shuffle.experts.mean() for shuffle in shuffled])) - float(ordered.experts.mean())
    slope = saved_experts * ordered.steps / (1000 * ordered.wall_s(costs))
    error = math.hypot(expert_ms_se * slope, float(np.log(walls).std(ddof=1)))
    before = float(np.mean([shuffle.experts_per_layer for shuffle in shuffled]))
    return Prediction(
        name,
        math.expm1(ratio),
        math.expm1(ratio - STANDARD_ERRORS * error),
        math.expm1(ratio + STANDARD_ERRORS * error),
        1 - ordered.experts_per_layer / before,
        ordered.experts_per_layer,
    )
