"""A run is kept before anything else happens to it, and whatever fails afterwards is a note that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orderproof.job.errors import OrderproofError
from orderproof.job.spec import Job
from orderproof.runs import publish, recorder
from orderproof.runs.dvc import DvcError, Recorded
from orderproof.runs.mlflow_client import TrackingError
from orderproof.runs.promotion import ORDER_FILE
from orderproof.runs.recorder import Presentation, collect_warnings, keep, record, record_again, send, with_origin
from orderproof.runs.run import Run
from orderproof.runs.run_store import RunError, newest_run, write_run
from orderproof.runs.sent import sent_as
from tests.support.measured_job import MeasuredJob, make_measured_job
from tests.support.run_maker import make_job_run

STAGE = "generate@six-domains"


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MeasuredJob:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    return make_measured_job(tmp_path)


@pytest.fixture
def job(measured: MeasuredJob) -> Job:
    return measured.job


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that MLflow was sent; it takes them all."""
    taken: list[str] = []

    def take(_: Job, run: Run, __: Any) -> str:
        taken.append(run.id)
        return f"mlflow-{len(taken)}"

    monkeypatch.setattr(recorder, "send_run", take)
    return taken


def draws(folder: Path) -> None:
    (folder / "steps.png").write_bytes(b"png")


def fails(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("no room on the canvas")


# -- keeping -----------------------------------------------------------------------------------------------------------


def test_a_run_is_kept_with_its_pictures_and_page_and_sent(job: Job, sent: list[str]) -> None:
    run = keep(job, make_job_run(job), Presentation(draw=draws))
    folder = job.paths.run_dir("generate", run.id)
    assert {path.name for path in folder.iterdir()} == {"run.json", "steps.png", "page.html"}
    assert (run.notes, run.mlflow_run) == ((), "mlflow-1")
    assert job.root / run.files["page"] == folder / "page.html"
    kept = newest_run(job, "generate")
    assert kept is not None
    assert kept.files == run.files


def test_keeping_a_run_again_changes_nothing_and_sends_nothing(job: Job, sent: list[str]) -> None:
    first = keep(job, make_job_run(job), Presentation(draw=draws))
    folder = job.paths.run_dir("generate", first.id)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert keep(job, make_job_run(job), Presentation(draw=draws)) == first
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sent == [first.id]


def test_whatever_fails_beside_the_record_is_a_note_and_the_next_part_is_done(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "send_run", fails)
    run = keep(job, make_job_run(job, notes=("an earlier note",)), Presentation(draw=fails, page=fails))
    assert run.notes[0] == "an earlier note"
    assert sum("no room on the canvas" in note for note in run.notes) == 3
    assert any("orderproof log six-domains" in note for note in run.notes)
    assert (run.mlflow_run, "page" in run.files) == (None, False)
    kept = newest_run(job, "generate")
    assert kept is not None
    assert kept.id == run.id


def test_a_tracker_that_refuses_is_told_in_its_own_words_and_the_run_waits(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> str:
        raise TrackingError("MLflow at nowhere did not take it")

    monkeypatch.setattr(recorder, "send_run", refuses)
    run = keep(job, make_job_run(job), Presentation())
    assert run.notes == ("MLflow at nowhere did not take it",)
    assert sent_as(job, run) is None


def test_a_record_that_cannot_be_written_is_an_error_and_nothing_is_sent(job: Job, sent: list[str]) -> None:
    job.paths.reports_dir.parent.mkdir()
    job.paths.reports_dir.touch()
    with pytest.raises(RunError):
        keep(job, make_job_run(job), Presentation())
    assert sent == []


def test_an_interruption_is_no_note() -> None:
    notes: list[str] = []
    with pytest.raises(KeyboardInterrupt), collect_warnings(notes, "the page is missing"):
        raise KeyboardInterrupt
    with collect_warnings(notes, "the page is missing"):
        raise OrderproofError("what to do")
    assert notes == ["what to do"]


def test_what_was_sent_is_not_sent_again(job: Job, sent: list[str]) -> None:
    run = make_job_run(job)
    first = send(job, run, Presentation())
    assert (first.mlflow_run, send(job, run, Presentation()).mlflow_run) == ("mlflow-1", "mlflow-1")
    assert sent == [run.id]


# -- where a run came from ---------------------------------------------------------------------------------------------


def test_a_run_keeps_its_first_origin(job: Job) -> None:
    run = with_origin(job, make_job_run(job), "flow-1")
    assert (run.prefect_run, run.dvc_revision) == ("flow-1", None)
    write_run(job, run)
    assert with_origin(job, make_job_run(job), "flow-2").prefect_run == "flow-1"
    assert with_origin(job, make_job_run(job, "20261130T000000Z-0000"), "flow-2").prefect_run == "flow-2"


def test_without_git_a_run_names_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert recorder.git_revision(tmp_path) is None


# -- recording in DVC --------------------------------------------------------------------------------------------------


def test_a_dvc_that_fails_is_a_note_that_says_how_to_record_later(
    measured: MeasuredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise DvcError("`dvc commit` failed: ERROR: no space left")

    monkeypatch.setattr("orderproof.runs.dvc.record_in_dvc", full)
    run = record(measured.job, make_job_run(measured.job), measured.inputs)
    assert len(run.notes) == 1
    assert "no space left" in run.notes[0]
    assert f"`dvc commit --force {STAGE}`" in run.notes[0]


def test_inputs_that_changed_are_never_recorded_and_no_command_records_them(
    measured: MeasuredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(measured.job.prompts_path, "a") as prompts:
        prompts.write('{"id": "late", "text": "x"}\n')
    run = record(measured.job, make_job_run(measured.job), measured.inputs)
    assert len(run.notes) == 1
    assert "prompts.jsonl changed" in run.notes[0]
    assert "--force" not in run.notes[0]


def test_outputs_rest_on_the_inputs_the_order_and_what_else_is_named(
    measured: MeasuredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, asked = measured.job, []
    monkeypatch.setattr(
        "orderproof.runs.dvc.record_in_dvc", lambda _, *stage: asked.append(stage) or Recorded("", True)
    )
    monkeypatch.setattr("orderproof.runs.publish.publish", lambda *_: publish.Published())
    job.data_dir.mkdir(parents=True)
    (job.data_dir / ORDER_FILE).write_bytes(b"order")
    outputs = {"data/six-domains/outputs.parquet": "md5"}
    record(job, make_job_run(job), measured.inputs, outputs)
    record(job, make_job_run(job, verb="measure"), measured.inputs)
    (made, made_on, params), (measure, measured_on, _) = asked
    assert (made, measure) == (STAGE, "measure@six-domains")
    assert made_on.keys() == {job.prompts, *outputs, "data/six-domains/order.parquet"}
    assert measured_on.keys() == {job.prompts}, "a measurement writes the order, so it cannot rest on it"
    assert params == measured.inputs.params


@pytest.mark.parametrize("why", ["", "the remote is gone"])
def test_outputs_that_were_recorded_and_not_published_are_not_called_unrecorded(
    measured: MeasuredJob, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def publishes(*_: Any) -> publish.Published:
        if why:
            raise DvcError(why)
        return publish.Published()

    monkeypatch.setattr("orderproof.runs.dvc.record_in_dvc", lambda *_: Recorded(STAGE, True))
    monkeypatch.setattr("orderproof.runs.publish.publish", publishes)
    run = record(measured.job, make_job_run(measured.job), measured.inputs)
    assert run.notes == ((f"not published: {why}",) if why else ())


def test_without_dvc_a_note_says_that_nothing_was_recorded(measured: MeasuredJob) -> None:
    run = record(measured.job, make_job_run(measured.job), measured.inputs)
    assert [note.split(":")[0] for note in run.notes] == ["not recorded in DVC"]


def test_inside_a_stage_nobody_is_told_that_outputs_are_not_recorded(
    measured: MeasuredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_STAGE", STAGE)
    assert record(measured.job, make_job_run(measured.job), measured.inputs).notes == ()


def test_files_that_changed_beside_a_measurement_are_recorded_whatever_no_trial_reads(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("orderproof.runs.dvc.record_again", lambda *given: asked.append(given) or Recorded("", True))
    monkeypatch.setattr("orderproof.runs.publish.publish", lambda *_: publish.Published(notes=("a note",)))
    assert record_again(job, "demoted") == ["a note"]
    assert asked == [(job.root, "measure@six-domains", ("accept_lossy",))]


def test_a_dvc_lock_that_cannot_be_read_is_a_note_on_what_changed(job: Job) -> None:
    (job.root / "dvc.lock").write_text("stages: [")
    (note,) = record_again(job, "demoted")
    assert "dvc.lock is not valid YAML" in note
    assert "`dvc commit --force measure@six-domains`" in note
