"""An order that an engine's scheduler undid is counted."""

from __future__ import annotations

import math

import pytest

from orderproof.engines.admission import AdmissionLog, count_inversions


@pytest.mark.parametrize(
    ("clock", "inversions"),
    [([], 0), ([1.0, 1.0, 2.0], 0), ([1.0, math.nan, 2.0], 0), ([3.0, 1.0, 2.0, 4.0], 2), ([math.nan], 0)],
)
def test_each_request_that_overtook_one_sent_earlier_counts(clock: list[float], inversions: int) -> None:
    assert count_inversions(clock) == inversions


def test_answers_come_in_any_order() -> None:
    log = AdmissionLog()
    places = [log.send() for _ in range(4)]
    for place, at_s in ((3, 9.0), (0, 5.0), (2, 4.0)):
        log.admit(places[place], at_s)
    assert log.inversions == 1
