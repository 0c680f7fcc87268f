"""A pass added up: devices, replicas and samples of a prompt, each as the engine has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.routing.replay import Load
from orderproof.routing.route_source import CapturedRoutes
from orderproof.routing.simulate import EngineShape, tally, tally_captured
from orderproof.routing.step_costs import StepCosts
from tests.forecast.test_order_cross_validation import routes_of
from tests.support.trial_maker import make_job

COSTS = StepCosts((2,), (1.0,), 0.5, "a test")
PAIRS = [(0, 1), (0, 1), (0, 1), (0, 1), (2, 3), (2, 3), (2, 3), (2, 3)]


@pytest.mark.parametrize(
    ("args", "devices"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 4}, 1),
        ({"enable_expert_parallel": True}, 1),
        ({"enable_expert_parallel": True, "tensor_parallel_size": 4}, 4),
        (
            {
                "enable_expert_parallel": True,
                "tensor_parallel_size": 2,
                "data_parallel_size": 3,
                "distributed_executor_backend": "external_launcher",
            },
            6,
        ),
        ({"enable_expert_parallel": True, "pipeline_parallel_size": 4}, 1),
    ],
)
def test_experts_are_whole_on_a_device_only_with_expert_parallelism(
    tmp_path: Path, args: dict[str, Any], devices: int
) -> None:
    job = make_job(tmp_path, engine={"args": {"max_num_seqs": 8, **args}, "replicas": 3})
    assert EngineShape.of(job) == EngineShape(8, devices=devices, replicas=3)


def test_a_layer_waits_for_the_device_that_reads_most(tmp_path: Path) -> None:
    with routes_of(tmp_path / "routes.parquet", (0, 1), (2, 3), (4, 5)) as routes:  # experts 0 to 3 on the first device
        one, two = (tally_captured(routes, [0, 1, 2], EngineShape(3, devices=devices)) for devices in (1, 2))
    assert (one.experts_per_layer, two.experts_per_layer) == (6, 4)


def test_replicas_run_contiguous_shares_beside_each_other(tmp_path: Path) -> None:
    """Sorted, each of two replicas has prompts of one kind; dealt out in turn it would have both."""
    with routes_of(tmp_path / "routes.parquet", *PAIRS) as routes:
        one, two = (tally_captured(routes, range(8), EngineShape(2, replicas=replicas)) for replicas in (1, 2))
    assert two.experts_per_layer == one.experts_per_layer == 2
    assert two.running.tolist() == one.running.tolist() == [2] * 20
    assert (one.steps, two.steps) == (20, 10)
    assert two.wall_s(COSTS) == pytest.approx(one.wall_s(COSTS) / 2) == pytest.approx(10 * (1 + 0.5 * 2) / 1000)


def test_shares_are_equal_by_work_and_not_by_number(tmp_path: Path) -> None:
    with routes_of(tmp_path / "routes.parquet", *PAIRS) as routes:
        source = CapturedRoutes(routes, np.arange(8))
        loads = [Load(0, 1, 29), *(Load(k, 1, 9) for k in range(1, 4))]
        counted = tally(loads, source, EngineShape(1, replicas=2))
    assert len(counted.running) == 29 + 3 * 9
    assert (counted.experts == 2).all()


def test_each_sample_of_a_prompt_takes_a_place_of_the_batch(tmp_path: Path) -> None:
    with routes_of(tmp_path / "routes.parquet", (0, 1), (2, 3)) as routes:
        one = tally_captured(routes, [0, 1], EngineShape(2))
        two = tally_captured(routes, [0, 1], EngineShape(2), {0: 2, 1: 2})
    assert (one.experts_per_layer, len(one.running)) == (4, 5)  # both prompts beside each other
    assert (two.experts_per_layer, len(two.running)) == (2, 10)  # each with its own second sample
    assert two.prefill_tokens.sum() == 2 * one.prefill_tokens.sum()
