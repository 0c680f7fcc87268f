"""A predicted gain follows from replayed steps, and its interval from what is not known of their cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orderproof.forecast.prediction import SHUFFLES, Prediction, predict, shrink_to_unseen
from orderproof.routing.experts import BitSets
from orderproof.routing.replay import SimRequest
from orderproof.routing.simulate import EngineShape, simulate_pass
from orderproof.routing.step_costs import StepCosts

GROUPS, EACH, BATCH, TOKENS = 4, 32, 8, 6
COSTS = StepCosts((BATCH,), (1.0,), 0.1, "a test")
LOADS = [[SimRequest(k, 2, TOKENS)] for k in range(GROUPS * EACH)]
SORTED = np.argsort([k % GROUPS for k in range(len(LOADS))], kind="stable")
FILE = np.arange(len(LOADS))


class OneExpertPerGroup:
    """Prompt k belongs to group k % GROUPS, whose tokens all use one expert of its own, in both layers."""

    layers, experts = 2, GROUPS

    def generated(self, number: int) -> int | None:
        return TOKENS

    def prefill(self, number: int, start: int, stop: int) -> BitSets:
        return self.decode(number, 1)[0]

    def decode(self, number: int, tokens: int, sample: int = 0) -> BitSets:
        return np.full((tokens, self.layers, 1), 1 << number % GROUPS, np.uint64)


def test_a_pass_costs_what_its_steps_cost() -> None:
    counted = simulate_pass([LOADS[k][0] for k in FILE], OneExpertPerGroup(), EngineShape(BATCH))
    assert counted.experts_per_layer == pytest.approx(GROUPS)  # dealt out in turn, so each batch holds every group
    steps = len(LOADS) // BATCH * TOKENS
    assert counted.wall_s(COSTS) == pytest.approx(steps * (1.0 + 0.1 * 2 * GROUPS) / 1000)


def test_grouping_saves_the_experts_of_the_other_groups() -> None:
    (sorted_order, file), shuffled_s = predict(
        {"sorted": SORTED, "file": FILE}, LOADS, OneExpertPerGroup(), EngineShape(BATCH), COSTS
    )
    steps = len(LOADS) // BATCH * TOKENS
    assert sorted_order.experts_per_layer == pytest.approx(1)
    grouped_s = steps * (1.0 + 0.1 * 2) / 1000
    assert sorted_order.gain == pytest.approx(shuffled_s / grouped_s - 1)
    assert file.gain < 0 < sorted_order.gain  # the file mixes the groups more evenly than chance
    assert 0.5 < sorted_order.experts_saved < 0.75
    assert sorted_order.low < sorted_order.gain < sorted_order.high


def test_a_doubtful_cost_of_an_expert_widens_the_interval_of_what_saves_experts_only() -> None:
    orders = {"sorted": SORTED, "shuffled": np.random.default_rng(9).permutation(len(LOADS))}
    sure, _ = predict(orders, LOADS, OneExpertPerGroup(), EngineShape(BATCH), COSTS)
    doubtful, _ = predict(orders, LOADS, OneExpertPerGroup(), EngineShape(BATCH), COSTS, expert_ms_se=0.02)
    widths = [[one.high - one.low for one in found] for found in (sure, doubtful)]
    assert widths[1][0] > 1.5 * widths[0][0]
    assert widths[1][1] == pytest.approx(widths[0][1], abs=0.02)
    assert [one.gain for one in sure] == [one.gain for one in doubtful]


def test_the_interval_reaches_from_one_cost_of_an_expert_to_the_other() -> None:
    """What an expert costs more the base costs less, so that a shuffled pass keeps its time."""
    error = 0.02
    (predicted,), _ = predict(
        {"sorted": SORTED}, LOADS, OneExpertPerGroup(), EngineShape(BATCH), COSTS, expert_ms_se=error
    )
    random = np.random.default_rng(0)
    shuffles = [
        simulate_pass([LOADS[k][0] for k in random.permutation(len(LOADS))], OneExpertPerGroup(), EngineShape(BATCH))
        for _ in range(SHUFFLES)
    ]
    experts = float(np.mean([one.experts.mean() for one in shuffles]))
    for bound, off in ((predicted.low, -2 * error), (predicted.high, 2 * error)):
        costs = StepCosts((BATCH,), (1.0 - off * experts,), 0.1 + off, "another")
        ordered = simulate_pass([LOADS[k][0] for k in SORTED], OneExpertPerGroup(), EngineShape(BATCH)).wall_s(costs)
        gain = float(np.mean([one.wall_s(costs) for one in shuffles])) / ordered - 1
        assert bound == pytest.approx(gain, rel=0.35)


def test_the_same_question_has_the_same_answer() -> None:
    answers = [
        predict({"sorted": SORTED}, LOADS, OneExpertPerGroup(), EngineShape(BATCH), COSTS, seed=3) for _ in range(2)
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("held_out", "gain", "low"),
    [(0.4, 0.21, 0.15), (0.5, 0.21, 0.15), (0.2, 0.1, math.sqrt(1.15) - 1), (0.0, 0.0, 0.0), (-0.1, 0.0, 0.0)],
)
def test_a_gain_shrinks_as_what_is_saved_of_prompts_that_taught_nothing(
    held_out: float, gain: float, low: float
) -> None:
    left = shrink_to_unseen(Prediction("learned", 0.21, 0.15, 0.27, 0.4, 20.0), held_out)
    assert (left.gain, left.low, left.high) == pytest.approx((gain, low, 0.27))


@pytest.mark.parametrize("saved", [0.0, -0.05])
def test_what_saves_nothing_has_learned_nothing_to_take_off(saved: float) -> None:
    one = Prediction("learned", -0.02, -0.04, 0.0, saved, 20.0)
    assert shrink_to_unseen(one, 0.1) == one


@pytest.mark.parametrize("held_out", [0.02, 0.1])
def test_a_loss_that_shrinks_stays_inside_its_interval(held_out: float) -> None:
    left = shrink_to_unseen(Prediction("learned", -0.05, -0.06, -0.04, 0.2, 20.0), held_out)
    assert -0.05 < left.gain < 0
    assert left.low <= left.gain <= left.high
