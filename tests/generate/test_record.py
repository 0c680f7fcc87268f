"""A run's record, its picture, and what real MLflow holds of it. The engine is the stand-in."""

from __future__ import annotations

import datetime
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from orderproof.engines.protocol import EngineError
from orderproof.generate import recording
from orderproof.generate.checkpoint_folder import FOLDER
from orderproof.generate.picture import draw_batch
from orderproof.generate.progress import SavedProgress, write_progress
from orderproof.generate.record import BatchRecordError, BatchRun, keep, read_runs, reports_of
from orderproof.generate.recording import record, report
from orderproof.generate.tracking import RUN_TAG, log_waiting
from orderproof.job.hashing import md5_of
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.prompts.stream import Stream
from orderproof.runs.recording import inputs_of
from orderproof.runs.trial_tracking import tracking_uri
from orderproof.status.status import job_status
from orderproof.status.text import status_lines
from tests.e2e.test_batch_faults import run_and
from tests.support.batches import make_project, promote_label_order, recorded_batch, write_prompts

PROMPTS = 120
NOWHERE = "http://127.0.0.1:9"  # nobody listens on `discard`


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    made = make_project(tmp_path / "p", PROMPTS, step_ms=1)
    promote_label_order(made)
    return made.model_copy(update={"reporting": made.reporting.model_copy(update={"price_per_hour": 3.6})})


def sent_runs(job: Job) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking_uri(job.root))
    experiment = client.get_experiment_by_name(f"orderproof/{job.name}")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def kept(job: Job) -> BatchRun:
    """A run that came to its end, with its record."""
    run = recorded_batch(job)[2]
    keep(job, run)
    return run


def test_a_run_is_recorded_with_the_figures_of_its_work(job: Job) -> None:
    generated, _, run = recorded_batch(job)
    assert (run.prompts, run.generated, run.resumed, run.failed) == (PROMPTS, PROMPTS, 0, 0)
    assert (run.order.method, run.output_tokens) == ("label", PROMPTS * 8)
    assert generated.figures is not None
    assert run.throughput_tok_s == pytest.approx(PROMPTS * 8 / run.wall_s)
    assert run.cost_per_1k_requests == pytest.approx(1000 * 3.6 / 3600 * run.wall_s / PROMPTS)
    assert run.time_per_batch_ms is not None
    assert 1 <= run.time_per_batch_ms <= (run.time_per_batch_p95_ms or 0)
    assert 0 < (run.running_mean or 0) <= 16
    assert run.outputs_md5 == md5_of(job.root / run.outputs)
    assert BatchRun.model_validate_json(run.model_dump_json()) == run


def test_a_record_that_cannot_be_written_is_told(job: Job) -> None:
    run = recorded_batch(job)[2]
    reports_of(job).parent.mkdir(parents=True)
    reports_of(job).write_text("in the way")
    with pytest.raises(BatchRecordError, match=rf"{run.run}.json cannot be written: .*The outputs are whole"):
        keep(job, run)


def test_figures_are_of_what_was_generated_and_not_of_what_was_refused(job: Job) -> None:
    write_prompts(job, ["x" * (200 if k % 3 else 5) for k in range(PROMPTS)])  # two of three do not fit
    tolerant = job.model_copy(update={"generate": job.generate.model_copy(update={"tolerated_failures": 1.0})})
    _, _, run = recorded_batch(tolerant)
    answered = PROMPTS // 3
    assert (run.prompts, run.generated, run.failed) == (PROMPTS, answered, PROMPTS - answered)
    assert run.throughput_req_s == pytest.approx(answered / run.wall_s)
    assert run.cost_per_1k_requests == pytest.approx(1000 * 3.6 / 3600 * run.wall_s / answered)
    assert (run.prompt_tokens, run.output_tokens) == (5 * answered, 8 * answered)


def test_where_every_prompt_was_refused_there_is_no_rate(job: Job) -> None:
    write_prompts(job, ["x" * 200] * 3)
    tolerant = job.model_copy(update={"generate": job.generate.model_copy(update={"tolerated_failures": 1.0})})
    _, _, run = recorded_batch(tolerant)
    assert (run.generated, run.failed, run.throughput_req_s, run.cost_per_1k_requests) == (0, 3, None, None)


def test_a_run_on_replicas_tells_how_evenly_they_ended(tmp_path: Path) -> None:
    job = make_project(tmp_path / "r", PROMPTS, step_ms=1, replicas=2)
    generated, _, run = recorded_batch(job)
    assert (run.replicas, len(run.replica_wall_s), run.generated) == (2, 2, PROMPTS)
    assert run.wall_s == max(run.replica_wall_s)
    assert run.imbalance == pytest.approx(max(run.replica_wall_s) / (sum(run.replica_wall_s) / 2))
    assert f"on 2 replicas, the slowest of which took {run.imbalance:.2f} times their mean" in run.sentence()
    assert generated.steps.running_mean > 16, "of both replicas together"
    keep(job, run)
    assert "req/s on 2 replicas" in "\n".join(status_lines([job_status(job)]))


def test_a_batch_goes_on_with_another_number_of_replicas(tmp_path: Path) -> None:
    job = make_project(tmp_path / "r", PROMPTS, step_ms=1, replicas=3)
    with pytest.raises(EngineError, match="replica 2 of 3"):
        run_and(job, lambda engine: os.killpg(engine.engines[1].pid, signal.SIGKILL), after=40)
    left = job.model_copy(update={"engine": job.engine.model_copy(update={"replicas": 1})})
    _, _, run = recorded_batch(left)
    assert (run.resumed >= 40, run.resumed + run.generated, run.replicas, run.imbalance) == (True, PROMPTS, 1, None)


def test_a_run_that_went_on_has_the_figures_of_its_own_part(job: Job) -> None:
    with pytest.raises(EngineError):
        run_and(job, lambda engine: os.killpg(engine.pid, signal.SIGKILL), after=40)
    _, _, run = recorded_batch(job)
    assert run.resumed >= 40
    assert run.generated == PROMPTS - run.resumed
    assert run.output_tokens == run.generated * 8


def test_mlflow_holds_a_run_once_however_often_it_is_sent(job: Job) -> None:
    run = report(job, kept(job))
    assert run.mlflow_run
    keep(job, run.model_copy(update={"mlflow_run": None}))
    (again,) = log_waiting(job)
    (held,) = sent_runs(job)
    assert held.info.run_id == run.mlflow_run == again.mlflow_run
    assert (held.info.status, held.info.run_name) == ("FINISHED", f"generate {run.started_utc}")
    assert held.data.metrics["throughput_tok_s"] == run.throughput_tok_s
    assert held.data.params["order"] == "label"
    assert held.data.tags[RUN_TAG] == run.run


def test_a_tracker_that_is_down_is_a_note_and_is_told_later(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = report(job, kept(job))
    assert run.mlflow_run is None
    assert "`orderproof log it` sends it later" in run.notes[0]
    assert (job.root / run.outputs).exists()
    assert (reports_of(job) / f"{run.run}.png").exists()
    assert "not in MLflow yet" in "\n".join(status_lines([job_status(job)]))
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert [sent.run for sent in log_waiting(job)] == [run.run]
    assert len(sent_runs(job)) == 1
    assert log_waiting(job) == []


def test_a_broken_record_of_an_earlier_run_is_a_note_and_the_run_is_sent(job: Job) -> None:
    reports_of(job).mkdir(parents=True)
    (reports_of(job) / "20260101T000000Z-0000.json").write_text("{")
    run = report(job, kept(job))
    assert [held.info.run_id for held in sent_runs(job)] == [run.mlflow_run]
    assert "20260101T000000Z-0000.json is not readable as the record of a run" in run.notes[0]


def test_a_picture_that_cannot_be_drawn_is_a_note(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "draw_batch", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    run = report(job, kept(job))
    assert run.mlflow_run
    assert "the picture is missing (OSError: [Errno 28] No space left)" in run.notes


def test_the_next_run_takes_along_what_no_tracker_took(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    report(job, kept(job))
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    report(job, kept(job))
    assert [run.mlflow_run is not None for run in read_runs(job)] == [True, True]
    assert len(sent_runs(job)) == 2


def test_a_picture_shows_the_steps_and_nothing_is_drawn_of_none(job: Job, tmp_path: Path) -> None:
    _, _, run = recorded_batch(job)
    assert draw_batch(run, tmp_path / "run.png") == tmp_path / "run.png"
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert draw_batch(run.model_copy(update={"curve": ()}), tmp_path / "none.png") is None


def test_outside_of_dvc_the_outputs_are_there_and_a_note_says_so(job: Job) -> None:
    inputs = inputs_of(job)
    run = record(job, recorded_batch(job)[2], inputs)
    assert "is not inside a DVC repository" in run.notes[0]


def test_status_tells_of_the_checkpoint_and_then_of_the_run(job: Job) -> None:
    assert (job_status(job)["checkpoint"], job_status(job)["last_run"]) == (None, None)
    with pytest.raises(EngineError):
        run_and(job, lambda engine: os.killpg(engine.pid, signal.SIGKILL), after=40)
    kept = job_status(job)["checkpoint"]
    assert (kept["results"] >= 40, kept["prompts"]) == (True, PROMPTS)
    said = f"{kept['results']} of {PROMPTS} results are kept, the newest of {kept['when']}: `orderproof generate it`"
    assert said in "\n".join(status_lines([job_status(job)]))
    keep(job, recorded_batch(job)[2])
    told = job_status(job)
    assert told["checkpoint"] is None
    assert {key: told["last_run"][key] for key in ("order", "prompts", "failed", "current", "sent")} == {
        "order": "label", "prompts": PROMPTS, "failed": 0, "current": True, "sent": False,
    }  # fmt: skip
    with open(job.prompts_path, "a") as sink:
        sink.write('{"id": "new", "text": "t"}\n')
    assert job_status(job)["last_run"]["current"] is False
    assert "of another version of the prompts" in "\n".join(status_lines([job_status(job)]))


def test_status_tells_of_a_stream_that_its_outputs_are_not_of_the_jobs_own_prompts(job: Job, tmp_path: Path) -> None:
    (tmp_path / "came.jsonl").write_text('{"id": "s", "text": "t", "label": "a"}\n')
    keep(job, recorded_batch(job, stream=Stream(str(tmp_path / "came.jsonl")))[2])
    told = job_status(job)
    assert (told["last_run"]["streamed"], told["last_run"]["current"]) == (True, False)
    said = "\n".join(status_lines([told]))
    assert "of a stream, whose prompts are kept in data/it/streamed.jsonl" in said
    assert "another version" not in said


def test_status_tells_of_the_run_that_is_at_work(job: Job) -> None:
    seen: list[dict[str, Any]] = []

    def look(_: Any) -> None:
        seen.append(job_status(job))
        now = datetime.datetime.now(datetime.UTC).isoformat()
        done = seen[0]["checkpoint"]["results"]
        progress = SavedProgress(
            run="r", prefect_run="p", prompts=PROMPTS, resumed=0, done=done, rate_req_s=2.0, written_utc=now
        )
        write_progress(job.data_dir / FOLDER, progress)
        seen.append(job_status(job))

    run_and(job, look, after=40)
    early, late = seen
    assert early["underway"]["who"] == f"process {os.getpid()} on {socket.gethostname()}"
    assert (early["underway"]["run"], early["underway"]["done"]) == (None, None)
    assert "it generates nothing yet" in "\n".join(status_lines([early]))
    left_s = (PROMPTS - late["checkpoint"]["results"]) / 2
    assert (late["underway"]["prefect_run"], late["underway"]["seconds_left"]) == ("p", left_s)
    said = "\n".join(status_lines([late]))
    assert f"of {PROMPTS} prompts, 2.00 req/s, {left_s / 60:.0f} min more" in said
    assert "goes on" not in said
    assert job_status(job)["underway"] is None
    assert "generating now" in status_lines([late, late])[1]


def test_a_broken_record_is_told_and_the_rest_of_the_status_stands(job: Job) -> None:
    reports_of(job).mkdir(parents=True)
    (reports_of(job) / "20261129T144640Z-3f9a.json").write_text("{")
    told = job_status(load_job(job.root / "params.yaml", "it"))
    assert told["last_run"] is None
    assert any("not readable as the record of a run" in problem for problem in told["problems"])
