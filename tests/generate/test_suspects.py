"""Prompts that an engine had when it died are narrowed down to the one that is why, and the rest is generated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orderproof.engines.protocol import EngineError
from orderproof.generate import story
from orderproof.generate.checkpoint_folder import FOLDER
from orderproof.generate.delivery import DeliveryError
from orderproof.generate.suspects import FILE, Suspects
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.runs.run import Run
from tests.support.batches import count, generate, generate_and, make_project, outputs, write_prompts
from tests.support.interrupted import kill

PROMPTS, POISON = 120, "!"


def test_halves_of_halves_lead_to_a_single_prompt(tmp_path: Path) -> None:
    suspects, deaths = Suspects(tmp_path), 1
    suspects.add([7, 3, 9, 1, 4])
    while suspects.groups:
        group = suspects.groups[0]
        if 9 in group:
            deaths += 1
            suspects.narrow(group, group)
        else:
            suspects.clear(group)
        assert Suspects(tmp_path).__dict__ == suspects.__dict__, "on disk at once"
    assert suspects.fatal == [9]
    assert deaths <= 4


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"groups": 1}'])
def test_a_damaged_file_of_suspects_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert Suspects(tmp_path).places == []


def poisoned_job(root: Path, places: set[int], **settings: object) -> Job:
    """A job whose engine dies of the prompts at some places."""
    job = make_project(root, PROMPTS, step_ms=1, **settings)  # type: ignore[arg-type]
    params = json.loads((root / "params.yaml").read_text())
    params["jobs"]["it"]["engine"]["env"]["STANDIN_POISON"] = str(ord(POISON))
    (root / "params.yaml").write_text(json.dumps(params))
    write_prompts(job, [f"prompt {k}{POISON if k in places else ''}" for k in range(PROMPTS)])
    return load_job(root / "params.yaml", "it")


def generate_again_and_again(job: Job) -> tuple[Run, list[str]]:
    """As a schedule does, until a run comes to its end; and how those before it ended."""
    deaths: list[str] = []
    while True:
        try:
            return generate(job), deaths
        except EngineError as error:
            deaths.append(str(error))


@pytest.mark.usefixtures("no_tracker")
@pytest.mark.parametrize(("places", "replicas"), [({50}, 1), ({0, 119}, 1), ({40, 41}, 1), ({50}, 2)])
def test_prompts_that_end_an_engine_are_found_and_all_others_generated(
    tmp_path: Path, places: set[int], replicas: int
) -> None:
    job = poisoned_job(tmp_path / "p", places, generate={"tolerated_failures": 0.05}, replicas=replicas)
    run, deaths = generate_again_and_again(job)
    assert 1 <= len(deaths) <= len(places)
    assert all("Run the job again: it sends all other prompts first" in death for death in deaths)
    assert count(run, "failed") == (len(places),)
    rows = outputs(job)
    assert {k for k, row in enumerate(rows) if row["finish_reason"] == "failed"} == places
    assert all("died with this prompt alone" in rows[k]["error"] for k in places)


@pytest.mark.usefixtures("no_tracker")
def test_a_prompt_that_ended_an_engine_alone_is_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = poisoned_job(tmp_path / "p", {50})
    with pytest.raises(EngineError, match="Run the job again"):
        generate(job)
    with pytest.raises(DeliveryError, match=r"1 of 120 prompts .* set `tolerated_failures` to 0\.0084$") as refusal:
        generate(job)
    assert "'p50': the engine died with this prompt alone" in refusal.value.words[0]
    tolerant = job.model_copy(update={"generate": job.generate.model_copy(update={"tolerated_failures": 0.0084})})
    monkeypatch.setattr(story, "start_engine", None)
    assert count(generate(tolerant), "resumed", "failed") == (119, 1)


@pytest.mark.usefixtures("no_tracker")
def test_an_engine_that_died_of_something_else_leaves_no_failure(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", PROMPTS, step_ms=1)
    with pytest.raises(EngineError, match="SIGKILL"):
        generate_and(job, kill, 40)
    assert Suspects(job.data_dir / FOLDER).groups
    assert count(generate(job), "failed") == (0,)
    assert [row["id"] for row in outputs(job)] == [f"p{k}" for k in range(PROMPTS)]


@pytest.mark.usefixtures("no_tracker")
def test_engines_that_keep_dying_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = poisoned_job(tmp_path / "p", {50}, generate={"tolerated_failures": 0.05})
    with pytest.raises(EngineError):
        generate(job)
    with monkeypatch.context() as bounded:
        bounded.setattr(story, "MOST_STARTS", 2)
        with pytest.raises(EngineError, match="SIGKILL"):
            generate(job)
    assert count(generate(job), "failed") == (1,), "the next run goes on from there"
