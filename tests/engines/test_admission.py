"""An order that an engine's scheduler undid is counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from orderproof.engines.admission import AdmissionLog, count_inversions, log_what_may_reorder
from orderproof.job.spec import EngineSpec, Job


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


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"args": {"max_num_seqs": 4}}, ""),
        ({"args": {"max_num_seqs": 4, "scheduling_policy": "fcfs"}}, ""),
        ({"args": {"max_num_seqs": 4, "scheduling_policy": "priority"}}, "scheduling_policy is 'priority'"),
        ({"args": {"max_num_seqs": 4, "scheduler_cls": "mine.Scheduler"}}, "scheduler_cls is 'mine.Scheduler'"),
        ({"args": {"max_num_seqs": 4, "data_parallel_size": 2}}, "deals single requests"),
        ({"args": {"max_num_seqs": 4}, "server": "http://127.0.0.1:1/v1"}, "behind a load balancer"),
    ],
)
def test_what_may_undo_an_order_is_named_before_anything_is_spent(
    tmp_path: Path, engine: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(name="it", root=tmp_path, prompts="p.jsonl", model="m", engine=EngineSpec.model_validate(engine))
    log_what_may_reorder(job)
    assert words in caplog.text
    assert bool(caplog.text) == bool(words)
