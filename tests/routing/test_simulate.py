"""A simulated pass has devices, replicas and samples of a prompt as the engine has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.engines.protocol import Request
from orderproof.engines.requests import RequestList
from orderproof.engines.shares import Shares
from orderproof.routing.predicted_work import equal_shares
from orderproof.routing.replay import SimRequest
from orderproof.routing.route_source import CapturedRoutes
from orderproof.routing.simulate import EngineShape, share_requests, simulate_captured, simulate_pass
from orderproof.routing.step_costs import StepCosts
from tests.support.routes_maker import pair_routes
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
    with pair_routes(
        tmp_path / "routes.parquet", (0, 1), (2, 3), (4, 5)
    ) as routes:  # experts 0 to 3 on the first device
        one, two = (simulate_captured(routes, [0, 1, 2], EngineShape(3, devices=devices)) for devices in (1, 2))
    assert (one.experts_per_layer, two.experts_per_layer) == (6, 4)


def test_replicas_run_contiguous_shares_beside_each_other(tmp_path: Path) -> None:
    """Sorted, each of two replicas has prompts of one kind; dealt out in turn it would have both."""
    with pair_routes(tmp_path / "routes.parquet", *PAIRS) as routes:
        one, two = (simulate_captured(routes, range(8), EngineShape(2, replicas=replicas)) for replicas in (1, 2))
    assert two.experts_per_layer == one.experts_per_layer == 2
    assert two.running.tolist() == one.running.tolist() == [2] * 20
    assert (one.steps, two.steps) == (20, 10)
    assert two.wall_s(COSTS) == pytest.approx(one.wall_s(COSTS) / 2) == pytest.approx(10 * (1 + 0.5 * 2) / 1000)


def test_shares_are_equal_by_work_and_not_by_number(tmp_path: Path) -> None:
    with pair_routes(tmp_path / "routes.parquet", *PAIRS) as routes:
        source = CapturedRoutes(routes, np.arange(8))
        requests = [SimRequest(0, 1, 29), *(SimRequest(k, 1, 9) for k in range(1, 4))]
        simulated = simulate_pass(requests, source, EngineShape(1, replicas=2))
    assert len(simulated.running) == 29 + 3 * 9
    assert (simulated.experts == 2).all()


def test_shares_are_those_that_the_engine_starts_with() -> None:
    """Long prompts count in the simulation for as little as they do in the engine."""
    sizes = np.random.default_rng(0).integers(1, [4000, 400], (30, 2)).tolist()
    requests = [SimRequest(number, *size) for number, size in enumerate(sizes)]
    prompts = [Request(number, [1] * prompt_tokens) for number, (prompt_tokens, _) in enumerate(sizes)]
    engines = Shares(RequestList(prompts, [generated for _, generated in sizes]).work(), 3, run=len(sizes))
    shares = share_requests(requests, 3)
    assert [[request.number for request in share] for share in shares] == [list(engines.take(k)) for k in range(3)]
    by_tokens = equal_shares(np.array(sizes, float).sum(axis=1), 3)
    assert [len(share) for share in shares] != [len(share) for share in by_tokens]


def test_a_prompt_counts_once_for_all_its_samples() -> None:
    many = [SimRequest(0, 1000, 10, sample) for sample in range(10)]  # work: 100 + 10 × 10
    others = [SimRequest(number, 1, 99) for number in range(1, 3)]
    assert [len(share) for share in share_requests([*many, *others], 2)] == [10, 2]


def test_each_sample_of_a_prompt_takes_a_place_of_the_batch(tmp_path: Path) -> None:
    with pair_routes(tmp_path / "routes.parquet", (0, 1), (2, 3)) as routes:
        one = simulate_captured(routes, [0, 1], EngineShape(2))
        two = simulate_captured(routes, [0, 1], EngineShape(2), {0: 2, 1: 2})
    assert (one.experts_per_layer, len(one.running)) == (4, 5)  # both prompts beside each other
    assert (two.experts_per_layer, len(two.running)) == (2, 10)  # each with its own second sample
    assert two.prefill_tokens.sum() == 2 * one.prefill_tokens.sum()
