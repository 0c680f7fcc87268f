"""Requests run in the steps in which vLLM's scheduler would run them."""

from __future__ import annotations

from hypothesis import given

from orderproof.routing.replay import SimRequest
from orderproof.routing.scheduler import Scheduler
from tests.support.brute_force import batches, simulate, windows


@given(batches, windows)
def test_requests_run_in_the_steps_of_the_scheduler(requests: list[SimRequest], limits: tuple[int, int]) -> None:
    scheduler, steps = Scheduler(*limits), simulate(requests, *limits)
    residencies = {request.number: scheduler.admit(request.prompt_tokens, request.generated) for request in requests}
    for number, step in enumerate(steps):
        assert step.admitted == [k for k, r in residencies.items() if r.admitted == number]
        assert sorted(step.running) == [k for k, r in residencies.items() if r.admitted <= number <= r.end]
        assert sorted(step.ended) == [k for k, r in residencies.items() if r.end == number]
        chunks = [stop - start for r in residencies.values() for at, start, stop in r.chunks if at == number]
        assert step.prefill_tokens == sum(chunks)
    assert len(steps) == 1 + max(r.end for r in residencies.values())


def test_a_free_place_is_taken_in_the_next_step() -> None:
    scheduler = Scheduler(2, 100)
    residencies = [scheduler.admit(5, generated) for generated in (3, 1, 2)]
    assert [(r.admitted, r.decode, r.end) for r in residencies] == [
        (0, 1, 2),
        (0, 1, 0),
        (1, 2, 2),
    ]


def test_a_prompt_longer_than_a_step_is_read_in_chunks_beside_those_that_generate() -> None:
    scheduler = Scheduler(4, 10)
    scheduler.admit(4, 3)
    residency = scheduler.admit(20, 1)
    assert residency.chunks == ((0, 0, 6), (1, 6, 15), (2, 15, 20))
    assert residency.end == 2
    assert scheduler.admit(1, 1).admitted == 2


def test_a_step_has_room_for_as_many_tokens_as_sequences() -> None:
    scheduler = Scheduler(3, 1)
    assert [scheduler.admit(1, 5).admitted for _ in range(3)] == [0, 0, 0]
