"""A step's time from its batch, experts and prompt tokens."""

from __future__ import annotations

import numpy as np
import pytest

from orderproof.routing.step_costs import StepCosts

COSTS = StepCosts((16, 32), (4.0, 6.0), 0.01, "a test", prefill_token_ms=0.5)


def test_base_is_interpolated_between_batches_and_held_outside() -> None:
    assert COSTS.ms([8, 16, 24, 32, 64], np.zeros(5), np.zeros(5)).tolist() == [4, 4, 5, 6, 6]


def test_experts_and_prompt_tokens_add_to_it() -> None:
    assert COSTS.ms([16, 16], [100, 0], [0, 3]) == pytest.approx(np.array([5.0, 5.5]))
