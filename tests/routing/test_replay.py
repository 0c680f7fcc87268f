"""Replayed steps and experts are those of a simulation token by token, in memory that the batch bounds."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderproof.routing import replay as replays
from orderproof.routing.experts import distinct
from orderproof.routing.replay import SimRequest, StepChunk, device_masks, replay
from tests.support.brute_force import EXPERTS, RandomRoutes, batches, simulate, windows


def gathered(chunks: list[StepChunk]) -> dict[str, list[int]]:
    """Steps of all chunks, end to end."""
    names = ("running", "waiting", "prefill_tokens", "experts")
    return {name: np.concatenate([getattr(chunk, name) for chunk in chunks]).tolist() for name in names}


@given(batches, windows, st.integers(1, 3), st.sampled_from([1, 3, 512]))
def test_steps_and_experts_are_those_of_a_simulation_token_by_token(
    requests: list[SimRequest], limits: tuple[int, int], devices: int, chunk_steps: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replays, "CHUNK_STEPS", chunk_steps)
        chunks = list(replay(requests, RandomRoutes(), *limits, devices))
    steps, sizes = simulate(requests, *limits), [len(part) for part in np.array_split(np.arange(EXPERTS), devices)]
    owner = np.repeat(np.arange(devices), sizes)
    found = gathered(chunks)
    assert found["experts"] == [step.experts(lambda expert: int(owner[expert])) for step in steps]
    assert found["running"] == [len(step.running) for step in steps]
    assert found["prefill_tokens"] == [step.prefill_tokens for step in steps]
    admitted = list(itertools.accumulate(len(step.admitted) for step in steps))
    in_flight = [
        min(2 * limits[0], len(requests) - (done - len(step.ended)))
        for step, done in zip(steps, itertools.accumulate(len(step.ended) for step in steps), strict=True)
    ]
    assert found["waiting"] == [
        min(len(requests) - came, flying - len(step.running))
        for step, came, flying in zip(steps, admitted, in_flight, strict=True)
    ]
    assert [pair for chunk in chunks for pair in chunk.admitted] == [
        (number, k) for number, step in enumerate(steps) for k in step.admitted
    ]
    assert [pair for chunk in chunks for pair in chunk.ended] == [
        (number, k) for number, step in enumerate(steps) for k in step.ended
    ]
    for chunk in chunks:
        assert all(
            chunk.first <= step < chunk.first + len(chunk.running) for step, _ in (*chunk.admitted, *chunk.ended)
        )


@pytest.mark.parametrize(("experts", "devices"), [(128, 2), (70, 3), (32, 32), (64, 1)])
def test_devices_hold_equal_contiguous_parts_as_in_vllm(experts: int, devices: int) -> None:
    masks = device_masks(experts, devices)
    base, left = divmod(experts, devices)
    assert distinct(masks).tolist() == [base + (device < left) for device in range(devices)]
    members = [[e for e in range(experts) if int(mask[e // 64]) >> (e % 64) & 1] for mask in masks]
    assert list(itertools.chain(*members)) == list(range(experts))


def test_no_request_is_no_step() -> None:
    assert list(replay([], RandomRoutes(), 4, 16)) == []


def test_memory_follows_the_batch_and_not_the_number_of_requests() -> None:
    def peak(count: int) -> int:
        requests = (SimRequest(number % 50, 4, 6) for number in range(count))
        tracemalloc.start()
        for _ in replay(requests, source, 8, 64):
            pass
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    class OneRoute(RandomRoutes):
        def prefill(self, number: int, start: int, stop: int) -> np.ndarray:
            return prefill

        def decode(self, number: int, tokens: int, sample: int = 0) -> np.ndarray:
            return decode

    prefill, decode = RandomRoutes().prefill(0, 0, 4), RandomRoutes().decode(0, 5)
    source = OneRoute()
    peak(500)
    assert peak(20_000) < 1.5 * peak(2_000)
