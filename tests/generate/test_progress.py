"""A run is told to be at work while it lives, by what it said itself."""

from __future__ import annotations

import datetime
from pathlib import Path

from orderproof.generate.checkpoint import FOLDER
from orderproof.generate.lock import holder_of, only_run
from orderproof.generate.progress import PROGRESS_FILE, HowFar, tell, told, underway


def progress(**changes: object) -> HowFar:
    now = datetime.datetime.now(datetime.UTC).isoformat()
    fields = {"run": "r", "prefect_run": None, "prompts": 100, "resumed": 20, "done": 60, "rate_req_s": 4.0}
    return HowFar.model_validate({**fields, "told_utc": now, **changes})


def test_nobody_is_at_work_where_nothing_was_ever_generated(tmp_path: Path) -> None:
    assert underway(tmp_path / "never") is None


def test_a_run_is_at_work_while_it_lives_and_not_a_moment_longer(tmp_path: Path) -> None:
    with only_run(tmp_path, wait=False):
        tell(tmp_path / FOLDER, progress())
        found = underway(tmp_path)
    assert found is not None
    assert found.who.startswith("process ")
    assert found.progress is not None
    assert (found.progress.done, found.progress.seconds_left) == (60, 10.0)
    assert underway(tmp_path) is None
    assert told(tmp_path / FOLDER) is not None, "what a killed run said last stays"


def test_what_an_earlier_run_said_is_not_said_of_the_one_that_is_at_work(tmp_path: Path) -> None:
    tell(tmp_path / FOLDER, progress(told_utc="2026-11-29T15:00:00+00:00"))
    with only_run(tmp_path, wait=False):
        found = underway(tmp_path)
    assert found is not None
    assert found.progress is None


def test_nothing_is_left_to_say_of_a_rate_before_the_first_prompt_is_finished() -> None:
    assert progress(done=20, rate_req_s=0.0).seconds_left is None


def test_a_note_that_is_no_note_is_none(tmp_path: Path) -> None:
    (tmp_path / PROGRESS_FILE).write_text("{}")
    assert told(tmp_path) is None


def test_whoever_asks_keeps_no_run_from_beginning(tmp_path: Path) -> None:
    with only_run(tmp_path, wait=False):
        pass
    assert holder_of(tmp_path) is None
    with only_run(tmp_path, wait=False):  # `wait=False` would refuse
        assert holder_of(tmp_path) is not None
