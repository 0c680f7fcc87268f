"""A run is reported as active while its process lives, with the progress that it wrote itself."""

from __future__ import annotations

import datetime
from pathlib import Path

from orderproof.generate.checkpoint_folder import FOLDER
from orderproof.generate.lock import only_run
from orderproof.generate.progress import (
    PROGRESS_FILE,
    SavedProgress,
    find_active_run,
    read_progress,
    write_progress,
)


def progress(**changes: object) -> SavedProgress:
    now = datetime.datetime.now(datetime.UTC).isoformat()
    fields = {"run": "r", "prefect_run": None, "prompts": 100, "resumed": 20, "done": 60, "rate_req_s": 4.0}
    return SavedProgress.model_validate({**fields, "written_utc": now, **changes})


def test_no_run_is_active_where_none_ever_generated(tmp_path: Path) -> None:
    assert find_active_run(tmp_path / "never") is None


def test_a_run_is_active_while_it_lives_and_no_longer(tmp_path: Path) -> None:
    with only_run(tmp_path, wait=False):
        write_progress(tmp_path / FOLDER, progress())
        found = find_active_run(tmp_path)
    assert found is not None
    assert found.holder.startswith("process ")
    assert found.progress is not None
    assert (found.progress.done, found.progress.seconds_left) == (60, 10.0)
    assert find_active_run(tmp_path) is None
    assert read_progress(tmp_path / FOLDER) is not None, "the last progress of a killed run stays"


def test_the_progress_of_an_earlier_run_is_not_taken_for_that_of_the_active_one(tmp_path: Path) -> None:
    write_progress(tmp_path / FOLDER, progress(written_utc="2026-11-29T15:00:00+00:00"))
    with only_run(tmp_path, wait=False):
        found = find_active_run(tmp_path)
    assert found is not None
    assert found.progress is None


def test_no_time_left_is_given_before_the_first_prompt_is_finished() -> None:
    assert progress(done=20, rate_req_s=0.0).seconds_left is None


def test_an_invalid_progress_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / PROGRESS_FILE).write_text("{}")
    assert read_progress(tmp_path) is None
