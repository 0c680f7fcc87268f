"""The stable shape of `--json`: figures by name with their intervals, absent things null."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from orderproof.runs.run import Figure, Run
from tests.support.run_maker import make_job_run
from tests.support.trial_maker import make_job


def test_figures_are_numbers_by_name_and_an_unknown_one_is_null(tmp_path: Path) -> None:
    shown = json.loads(json.dumps(make_job_run(make_job(tmp_path)).as_json()))
    assert shown["figures"] == {"gain": 0.06, "gain_low": 0.05, "gain_high": 0.07, "wall_s": 600.0, "saved_s": None}
    assert shown["schema"] == "orderproof/run/1"
    assert (shown["job"], shown["verb"], shown["answer"], shown["exit_code"]) == (
        "six-domains",
        "generate",
        "complete",
        0,
    )
    assert (shown["mlflow_run"], shown["prefect_run"], shown["dvc_revision"]) == (None, None, None)
    assert shown["basis"]["order"]["method"] == "label"


def test_an_interval_with_one_end_is_shown_with_both() -> None:
    assert Figure(name="gain", value=0.1, low=0.05).flat() == {"gain": 0.1, "gain_low": 0.05, "gain_high": None}


def test_a_figure_is_found_by_its_name(tmp_path: Path) -> None:
    run = make_job_run(make_job(tmp_path))
    assert (run.figure("gain"), run.figure("saved_s"), run.figure("no_such_figure")) == (0.06, None, None)


def test_notes_and_files_are_added_to_a_copy(tmp_path: Path) -> None:
    run = make_job_run(make_job(tmp_path), notes=("first",), files={"outputs": "data/it/outputs.parquet"})
    changed = run.with_notes("second", "third").with_files(page="page.html")
    assert changed.notes == ("first", "second", "third")
    assert changed.files == {"outputs": "data/it/outputs.parquet", "page": "page.html"}
    assert (run.notes, list(run.files)) == (("first",), ["outputs"])


def test_a_record_goes_to_json_and_back_without_loss_and_takes_no_unknown_field(tmp_path: Path) -> None:
    run = make_job_run(make_job(tmp_path))
    assert Run.model_validate_json(run.model_dump_json()) == run
    with pytest.raises(ValidationError, match="colour"):
        make_job_run(make_job(tmp_path), colour="red")
    with pytest.raises(ValidationError, match="frozen"):
        run.answer = "other"
