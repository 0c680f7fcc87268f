"""A flow's answer is the story's own, whether Prefect runs its tasks or not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from prefect import Task
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from flows import measure as flow_module
from flows.measure import measure_order
from orderproof.engines.protocol import Engine
from orderproof.job.spec import Job
from orderproof.measure import story
from orderproof.measure.story import measure
from orderproof.runs.run import Run
from orderproof.runs.run_store import newest_run
from tasks import artifacts, progress
from tasks import measure as measure_tasks
from tests.support.captured_job import make_job
from tests.support.fake_engine import FakeEngine
from tests.support.measured_job import without_trackers

DIFFERS = {"id", "started_utc", "ended_utc", "prefect_run", "files", "notes"}  # between two runs of one question


@contextlib.contextmanager
def start(job: Job) -> Iterator[Engine]:
    yield FakeEngine()


@pytest.fixture(autouse=True)
def on_a_fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_trackers(monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # the accelerator's lock file is not this machine's
    monkeypatch.setattr(story, "start_engine", start)


@pytest.fixture(autouse=True)
def no_server(tmp_path: Path) -> Iterator[None]:
    """Prefect with an empty home."""
    with temporary_settings({PREFECT_HOME: tmp_path / "prefect"}, restore_defaults={PREFECT_API_URL}):
        yield


@pytest.fixture
def of_the_story(tmp_path: Path) -> Run:
    return measure(project(tmp_path / "story"))


def project(root: Path) -> Job:
    return make_job(root, captured=128, measure={"looks": [3, 5]})


def common(run: Run) -> dict[str, Any]:
    return {
        **run.model_dump(mode="json", exclude=DIFFERS),
        "figures": [figure for figure in run.figures if figure.name != "measured_s"],
        "files": list(run.files),
        "notes": [note.split(":")[0] for note in run.notes],
    }


def without_prefect(steps: Any) -> Any:
    """The same steps, each called without Prefect."""
    found = {field.name: getattr(steps, field.name) for field in fields(steps)}
    return replace(steps, **{name: step.fn for name, step in found.items() if isinstance(step, Task)})


def test_the_steps_of_a_flow_give_the_same_run_as_the_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_the_story: Run
) -> None:
    shown: list[tuple[str, str]] = []
    for module, kind in (
        (artifacts, "markdown"),
        (artifacts, "link"),
        (measure_tasks, "table"),
        (progress, "progress"),
    ):
        monkeypatch.setattr(
            module, f"create_{kind}_artifact", lambda *_, key, kind=kind, **__: shown.append((key, kind))
        )
    monkeypatch.setattr(flow_module, "STEPS", without_prefect(flow_module.STEPS))
    run = measure_order.fn("it", str(project(tmp_path / "flow").root / "params.yaml"))
    assert common(run) == common(of_the_story)
    assert run.figure("blocks") in (3, 5), "a refusal would prove little"
    blocks = [("block-it", "table")] * int(run.figure("blocks") or 0)
    answer = [("measure-it", "markdown"), ("measure-page-it", "link")]
    assert shown == [("progress-requests-it", "progress"), *blocks, *answer]


@pytest.mark.long
def test_a_flow_without_a_server_gives_the_same_run_and_shows_it_in_prefect(tmp_path: Path, of_the_story: Run) -> None:
    job = project(tmp_path / "flow")
    run = measure_order(job.name, str(job.root / "params.yaml"))
    assert common(run) == common(of_the_story)
    kept = newest_run(job, "measure")
    assert kept is not None
    assert (kept.id, kept.prefect_run) == (run.id, run.prefect_run)
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(run.prefect_run)
        found = [(artifact.key, artifact.type) for artifact in client.read_artifacts()]
    assert flow_run.state_name == "Completed"
    assert found.count(("block-it", "table")) == run.figure("blocks")
    for shown in (("measure-it", "markdown"), ("measure-page-it", "markdown"), ("progress-requests-it", "progress")):
        assert found.count(shown) == 1
