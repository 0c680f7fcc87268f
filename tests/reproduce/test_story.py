"""A reproduction as a whole: which step comes when, and what is kept where one fails. The engine is the stand-in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orderproof.generate import story as generate_story
from orderproof.generate.checkpoint_folder import KEY_FILE
from orderproof.job.spec import Job
from orderproof.reproduce import steps
from orderproof.reproduce.baseline_file import FOLDER
from orderproof.reproduce.record import NEWEST_FILE, ReproductionError, read_newest
from orderproof.runs.mlflow_run import RUN_TAG
from orderproof.runs.run_store import read_runs, run_folder
from orderproof.status.unsent import send_unsent
from tests.support.batches import REPRODUCE, count, generate, make_project, promote_label_order, reproduce
from tests.support.tracker import NOWHERE, sent_runs

PROMPTS, DRIFT = 40, 4


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    project = make_project(tmp_path / "p", PROMPTS)
    promote_label_order(project)
    generate(project)
    return project


def test_the_steps_follow_each_other_and_each_gets_what_the_one_before_gave(job: Job) -> None:
    called: list[str] = []

    def noting(name: str, step: Any) -> Any:
        def noted(*given: Any) -> Any:
            called.append(name)
            return step(*given)

        return noted

    generation = REPRODUCE.generation
    noted = {name: noting(name, getattr(generation, name)) for name in ("validate", "choose_order", "generate")}
    own = {name: noting(name, getattr(REPRODUCE, name)) for name in ("find_baseline", "compare", "report", "record")}
    reproduce(job, run_with=replace(REPRODUCE, generation=replace(generation, **noted), **own))
    assert called == ["validate", "find_baseline", "choose_order", "generate", "compare", "report", "record"]


def test_a_report_that_fails_costs_no_output(job: Job) -> None:
    def fail(*_: Any) -> Any:
        raise ReproductionError("it cannot be written")

    with pytest.raises(ReproductionError):
        reproduce(job, run_with=replace(REPRODUCE, report=fail))
    assert (job.data_dir / FOLDER / KEY_FILE).exists()
    assert count(reproduce(job), "resumed", "generated") == (PROMPTS, 0)
    assert not (job.data_dir / FOLDER).exists()


def test_no_figures_of_a_reproduction_are_in_mlflow_while_it_runs(job: Job) -> None:
    lives: list[bool] = []

    def generate_step(*given: Any) -> Any:
        lives.append(given[-1])
        return generate_story.Steps().generate(*given)

    reproduce(job, run_with=replace(REPRODUCE, generation=replace(REPRODUCE.generation, generate=generate_step)))
    assert lives == [False]


def test_a_reproduction_goes_to_mlflow_once_and_what_dvc_has_of_it_stays_as_it_is(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("STANDIN_DRIFT", str(DRIFT))
    run = reproduce(job, run_with=replace(REPRODUCE, report=steps.report))
    assert run.mlflow_run is None
    assert any("`orderproof log it`" in note for note in run.notes)
    folder = run_folder(job, "reproduce", run.id)
    kept = {path: path.read_bytes() for path in (job.data_dir / NEWEST_FILE, *folder.iterdir())}
    assert {"run.json", "page.html", "divergence.png"} <= {path.name for path in folder.iterdir()}

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (sent,) = [sent for sent in send_unsent(job) if sent.verb == "reproduce"]
    assert send_unsent(job) == []
    (held,) = [held for held in sent_runs(job) if held.data.tags["verb"] == "reproduce"]
    assert (held.info.run_id, held.data.tags[RUN_TAG]) == (sent.mlflow_run, f"reproduce/{run.id}")
    assert held.data.metrics["identical_share"] == run.figure("identical_share")
    assert held.data.metrics["diverged"] == run.figure("diverged")
    assert held.data.tags["baseline_md5"] == run.details["baseline_md5"]
    assert {path: path.read_bytes() for path in kept} == kept, "a file changed when a tracker was told"


def test_the_record_has_all_that_the_comparison_has(job: Job) -> None:
    reproduce(job)
    (run,), newest = read_runs(job, "reproduce"), read_newest(job)
    assert newest is not None
    held = newest.model_dump(mode="json", exclude={"provenance": True, "schema_version": True})
    assert {key: run.details[key] for key in held} == held
    assert run.files["outputs"] == newest.reproduced


def test_outside_of_dvc_a_note_says_so(job: Job) -> None:
    run = reproduce(job, run_with=replace(REPRODUCE, record=steps.record))
    assert any("DVC repository" in note for note in run.notes)
