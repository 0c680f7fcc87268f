"""`plan`, and what it rests on: `capture`; and `lossy`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orderproof.capture import story as capture_story
from orderproof.job.spec import Job
from orderproof.lossy import story as lossy_story
from orderproof.runs.run import Run
from orderproof.runs.run_store import RECORD_FILE, run_folder
from tests.support.captured_job import calibrated, make_job
from tests.support.command_line import RunCommand
from tests.support.run_maker import make_job_run

pytestmark = pytest.mark.usefixtures("no_tracker")


def test_a_plan_without_a_job_is_the_inventory(run: RunCommand, project: Path) -> None:
    assert run("plan").out == run("status").out
    assert run("plan", "--json").out == run("status", "--json").out


def test_a_plan_gives_its_answer_its_page_and_the_next_command(run: RunCommand, tmp_path: Path) -> None:
    job = make_job(tmp_path, captured=96)
    result = run("plan", "it")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("it: CAPTURE")
    assert lines[-1] == "next: orderproof capture it"
    (folder,) = job.paths.verb_dir("plan").iterdir()
    assert f"page: {folder / 'page.html'}" in lines


def test_a_plan_is_kept_although_its_tracker_is_down(run: RunCommand, tmp_path: Path) -> None:
    make_job(tmp_path, captured=96)
    answer = run("plan", "it", "--json").json
    assert (answer["answer"], answer["mlflow_run"]) == ("capture", None)
    assert any("`orderproof log it`" in note for note in answer["notes"])


def test_a_plan_for_machines_is_the_record_that_is_kept(run: RunCommand, tmp_path: Path) -> None:
    job = make_job(tmp_path, captured=96, engine={"args": {"max_num_seqs": 512}})
    answer = run("plan", "it", "--json").json
    assert (answer["schema"], answer["verb"], answer["answer"]) == ("orderproof/run/1", "plan", "don't")
    kept = json.loads((run_folder(job, "plan", answer["id"]) / RECORD_FILE).read_text())
    same = ("job", "verb", "id", "answer", "sentence", "basis", "details", "files")
    assert {key: kept[key] for key in same} == {key: answer[key] for key in same}


def test_a_plan_with_routes_of_another_model_is_refused(run: RunCommand, tmp_path: Path) -> None:
    job = make_job(tmp_path, captured=96)
    calibrated(job)
    config = job.model_path / "config.json"
    config.write_text(config.read_text() + "\n")
    run("plan", "it").assert_refused(1, "another model", "orderproof capture it")


def test_a_plan_with_damaged_routes_is_refused(run: RunCommand, tmp_path: Path) -> None:
    job = make_job(tmp_path, captured=96)
    calibrated(job)
    routes = job.paths.routes
    routes.write_bytes(routes.read_bytes()[: routes.stat().st_size // 2])
    run("plan", "it").assert_refused(1, "routes.parquet", "orderproof capture")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The command asks for a capture or a comparison; this is what it asked."""
    asked: list[dict[str, Any]] = []

    def answer(job: Job, **how: Any) -> Run:
        asked.append(how)
        return make_job_run(job, verb="capture", answer="captured")

    monkeypatch.setattr(capture_story, "capture", answer)
    monkeypatch.setattr(lossy_story, "compare_routings", answer)
    return asked


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("capture", "it"), {"prompts": None, "seed": 0, "time_steps": True}),
        (
            ("capture", "it", "--prompts", "256", "--seed", "3", "--no-time-steps"),
            {"prompts": 256, "seed": 3, "time_steps": False},
        ),
        (("lossy", "it"), {"k0": 2, "blocks": 5}),
        (("lossy", "it", "--k0", "3", "--blocks", "10"), {"k0": 3, "blocks": 10}),
    ],
)
def test_options_reach_the_story(
    run: RunCommand, tmp_path: Path, calls: list[dict[str, Any]], words: tuple[str, ...], asked: dict[str, Any]
) -> None:
    make_job(tmp_path, captured=96)
    assert run(*words, "--json").json["answer"] == "captured"
    assert calls == [asked]
