"""`plan` as a story: what is kept, and what is only shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from orderproof.forecast.story import plan
from orderproof.job.errors import OrderproofError
from orderproof.runs.run_store import newest_run, run_folder, verb_folder
from tests.support.captured_job import make_job


@pytest.mark.usefixtures("no_tracker")
def test_a_plan_is_kept_although_mlflow_is_down(tmp_path: Path) -> None:
    job = make_job(tmp_path, captured=96)
    reports: list[str] = []
    run = plan(job, reports.append)
    assert (run.answer, run.mlflow_run) == ("capture", None)
    assert [note for note in run.notes if "`orderproof log it`" in note]
    assert newest_run(job, "plan") == run.model_copy(update={"notes": ()})
    assert (run_folder(job, "plan", run.id) / "page.html").exists()
    assert len(reports) > 1


@pytest.mark.usefixtures("no_tracker")
def test_a_job_that_no_order_can_help_is_answered_without_routes(tmp_path: Path) -> None:
    job = make_job(tmp_path, captured=96, engine={"args": {"max_num_seqs": 512}})
    assert plan(job).answer == "don't"


def test_a_plan_that_fails_leaves_no_record(tmp_path: Path) -> None:
    job = make_job(tmp_path, captured=96)
    job.prompts_path.write_text("nothing\n")
    with pytest.raises(OrderproofError):
        plan(job)
    assert not verb_folder(job, "plan").exists()
