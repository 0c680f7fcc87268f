"""Replicas and parallel workers on real vLLM: the same outputs as one engine gives, each on processors of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from orderproof.engines.client import VllmEngine
from orderproof.engines.protocol import Output
from orderproof.engines.requests import RequestList
from orderproof.engines.start import create_engine
from orderproof.job.spec import EngineSpec
from tests.conftest import GREEDY
from tests.engines.test_client import requests

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors"),
]
COUNT = 64
SAME_AT_LEAST = 0.7  # in bfloat16 an output may turn with its neighbours in the batch, and with the split of a sum


def outputs(engine: Any) -> dict[int, tuple[int, ...]]:
    answers: list[Any] = []
    engine.run(RequestList(requests(COUNT), [16] * COUNT), GREEDY, answers.append)
    assert all(isinstance(answer, Output) for answer in answers)
    assert len(answers) == COUNT
    return {answer.number: tuple(answer.completions[0].token_ids) for answer in answers}


def same(one: dict[int, tuple[int, ...]], other: dict[int, tuple[int, ...]]) -> float:
    assert one.keys() == other.keys()
    return sum(one[k] == other[k] for k in one) / len(one)


def test_two_replicas_give_the_outputs_of_one_engine_on_processors_of_their_own(
    engine: VllmEngine, engine_spec: EngineSpec, models: dict[str, Path], tmp_path: Path
) -> None:
    spec = engine_spec.model_copy(update={"replicas": 2})
    with create_engine(spec, models["moe"], GREEDY, tmp_path / "it.log") as two:
        bound = [
            {tuple(sorted(os.sched_getaffinity(thread.id))) for thread in psutil.Process(each.pid).threads()}
            for each in two.engines  # type: ignore[attr-defined]
        ]
        assert same(outputs(two), outputs(engine)) >= SAME_AT_LEAST
    assert [len(places) for places in bound] == [1, 1], "a thread wanders"
    assert not bound[0] & bound[1]


def test_tensor_parallel_workers_share_a_replica_s_processors_also_with_the_engine_core_in_the_worker_s_process(
    engine: VllmEngine, engine_spec: EngineSpec, models: dict[str, Path], tmp_path: Path
) -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    update = {
        "args": {**engine_spec.args, "tensor_parallel_size": 2},
        "devices": ((str(first), str(second)),),
    }
    with create_engine(engine_spec.model_copy(update=update), models["moe"], GREEDY, tmp_path / "it.log") as parallel:
        assert parallel.info.settings["in_process"]
        family = psutil.Process(parallel.pid).children(recursive=True)  # type: ignore[attr-defined]
        assert same(outputs(parallel), outputs(engine)) >= SAME_AT_LEAST
    _, alive = psutil.wait_procs(family, 10)
    assert len(family) >= 2
    assert not alive, "a worker outlived its engine"
