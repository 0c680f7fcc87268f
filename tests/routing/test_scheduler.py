"""Requests run in the steps in which vLLM's scheduler would run them."""

from __future__ import annotations

from hypothesis import given

from orderproof.routing.replay import Load
from orderproof.routing.scheduler import Window
from tests.support.brute_force import batches, simulate, windows


@given(batches, windows)
def test_requests_run_in_the_steps_of_the_scheduler(loads: list[Load], limits: tuple[int, int]) -> None:
    window, steps = Window(*limits), simulate(loads, *limits)
    stays = {load.number: window.admit(load.prompt_tokens, load.generated) for load in loads}
    for number, step in enumerate(steps):
        assert step.admitted == [k for k, stay in stays.items() if stay.admitted == number]
        assert sorted(step.running) == [k for k, stay in stays.items() if stay.admitted <= number <= stay.end]
        assert sorted(step.ended) == [k for k, stay in stays.items() if stay.end == number]
        chunks = [stop - start for stay in stays.values() for at, start, stop in stay.chunks if at == number]
        assert step.prefill_tokens == sum(chunks)
    assert len(steps) == 1 + max(stay.end for stay in stays.values())


def test_a_place_that_is_free_is_taken_in_the_next_step() -> None:
    window = Window(2, 100)
    stays = [window.admit(5, generated) for generated in (3, 1, 2)]
    assert [(stay.admitted, stay.decode, stay.end) for stay in stays] == [(0, 1, 2), (0, 1, 0), (1, 2, 2)]


def test_a_prompt_longer_than_a_step_is_read_in_chunks_beside_those_that_generate() -> None:
    window = Window(4, 10)
    window.admit(4, 3)
    stay = window.admit(20, 1)
    assert stay.chunks == ((0, 0, 6), (1, 6, 15), (2, 15, 20))
    assert stay.end == 2
    assert window.admit(1, 1).admitted == 2


def test_a_step_has_room_for_as_many_tokens_as_sequences() -> None:
    window = Window(3, 1)
    assert [window.admit(1, 5).admitted for _ in range(3)] == [0, 0, 0]
