"""A run is kept in a folder of its own, whole or not at all, and found again in time order."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from orderproof.job.spec import Job
from orderproof.runs.run_store import RunError, new_id, newest_run, read_run, read_runs, run_folder, write_run
from tests.support.run_maker import RUN_ID, make_job_run
from tests.support.trial_maker import make_job

START = datetime.datetime(2026, 11, 29, 14, 46, 40, 123456, tzinfo=datetime.UTC)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return make_job(tmp_path)


def test_what_was_written_is_read_back(job: Job) -> None:
    run = make_job_run(job)
    folder = write_run(job, run)
    assert folder == job.paths.run_dir("generate", RUN_ID)
    assert [path.name for path in folder.iterdir()] == ["run.json"]
    assert read_run(folder / "run.json") == run


def test_the_mlflow_run_is_known_later_and_leaves_the_file_as_it_is(job: Job) -> None:
    run = make_job_run(job)
    path = write_run(job, run) / "run.json"
    before = path.read_bytes()
    write_run(job, run.model_copy(update={"mlflow_run": "run-1"}))
    assert path.read_bytes() == before
    assert read_run(path).mlflow_run is None


def test_runs_are_read_oldest_first_and_each_verb_has_its_own(job: Job) -> None:
    assert (read_runs(job, "generate"), newest_run(job, "generate")) == ([], None)
    ids = ["20261130T000000Z-0000", "20261129T144640Z-3f9a", "20270101T000000Z-ffff"]
    for name in ids:
        write_run(job, make_job_run(job, name))
    write_run(job, make_job_run(job, "20280101T000000Z-0000", "measure"))
    assert [run.id for run in read_runs(job, "generate")] == sorted(ids)
    newest = newest_run(job, "generate")
    assert newest is not None
    assert newest.id == max(ids)


def test_a_folder_without_a_record_is_no_run(job: Job) -> None:
    job.paths.run_dir("generate", RUN_ID).mkdir(parents=True)
    assert newest_run(job, "generate") is None


def test_ids_sort_by_time_and_differ_within_a_second() -> None:
    moments = [START + datetime.timedelta(microseconds=step) for step in (0, 1, 400_000, 10**6, 10**8)]
    ids = [new_id(moment) for moment in moments]
    assert len(set(ids)) == len(ids)
    assert ids[0].startswith("20261129T144640Z-")
    assert [name[:16] for name in ids] == sorted(name[:16] for name in ids)
    assert new_id(START) == ids[0]


@pytest.mark.parametrize("name", ["..", "../../elsewhere", "20261129T144640Z-3f9a/..", "", "latest", f"{RUN_ID}\n"])
def test_what_is_no_id_never_becomes_a_path(job: Job, name: str) -> None:
    with pytest.raises(RunError, match="is not the id of a run"):
        run_folder(job, "generate", name)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": "orderproof/run/9"}'])
def test_a_broken_record_is_one_error_that_names_it(job: Job, content: str) -> None:
    path = write_run(job, make_job_run(job)) / "run.json"
    path.write_text(content)
    with pytest.raises(RunError) as caught:
        read_runs(job, "generate")
    assert str(path) in str(caught.value)
    assert "dvc checkout" in str(caught.value)


def test_a_record_that_cannot_be_written_is_an_error_that_says_where_the_outputs_are(job: Job) -> None:
    job.paths.reports_dir.parent.mkdir()
    job.paths.reports_dir.write_text("a file where the folder should be")
    with pytest.raises(RunError, match=r"data/six-domains/outputs\.parquet"):
        write_run(job, make_job_run(job, files={"outputs": "data/six-domains/outputs.parquet"}))
