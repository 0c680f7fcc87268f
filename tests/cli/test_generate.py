"""`generate` and `reproduce`: what reaches the story, and what the command needs for an answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orderproof.generate import story
from orderproof.job.spec import Job
from orderproof.prompts.stream import LINGER_S, Stream
from orderproof.reproduce import story as reproduce_story
from orderproof.runs.run import Run
from tests.support.batches import GENERATE, generate, make_project
from tests.support.command_line import RunCommand, modules_of_command
from tests.support.run_maker import make_job_run
from tests.support.tracker import NOWHERE


class Stopped(Exception):
    """A process that ended between two steps."""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return make_project(tmp_path / "p", 12)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The command asks for a generation or a reproduction; this is what it asked."""
    asked: list[dict[str, Any]] = []

    def generate(job: Job, **how: Any) -> Run:
        asked.append(how)
        print("printed by a library")
        return make_job_run(job)

    def reproduce(job: Job, **how: Any) -> Run:
        asked.append(how)
        return make_job_run(job, verb="reproduce", answer="outputs differ", exit_code=20)

    monkeypatch.setattr(story, "generate", generate)
    monkeypatch.setattr(reproduce_story, "reproduce", reproduce)
    return asked


@pytest.mark.parametrize("option", ["--follow", "--linger"])
def test_what_only_a_stream_has_is_wrong_usage_without_one(run: RunCommand, project: Path, option: str) -> None:
    result = run("generate", "it", option, "5")
    assert (result.code, result.out) == (2, "")
    assert option in result.err
    assert "--prompts" in result.err


def test_help_says_how_long_a_window_waits(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert f"[default: ({LINGER_S})]" in run("generate", "--help").out


@pytest.mark.parametrize(
    ("options", "restart", "stream", "output"),
    [
        ((), False, None, None),
        (("--restart",), True, None, None),
        (("--prompts", "-", "--output", "-"), False, Stream("-", None, LINGER_S), "-"),
        (("--prompts", "-", "--linger", "2.5"), False, Stream("-", None, 2.5), None),
    ],
)
def test_options_reach_the_generation(
    run: RunCommand,
    job: Job,
    calls: list[dict[str, Any]],
    options: tuple[str, ...],
    restart: bool,
    stream: Stream | None,
    output: str | None,
) -> None:
    assert run("generate", "it", "--params", job.root / "params.yaml", *options).code == 0
    assert calls == [{"restart": restart, "stream": stream, "output": output}]


def test_a_growing_file_is_found_from_the_current_folder(
    run: RunCommand, job: Job, tmp_path: Path, calls: list[dict[str, Any]]
) -> None:
    run("generate", "it", "--params", job.root / "params.yaml", "--prompts", "grows.jsonl", "--follow", "60")
    assert calls[0]["stream"] == Stream(str(tmp_path / "grows.jsonl"), 60.0, LINGER_S)


def test_where_results_go_to_standard_output_the_answer_does_not(
    run: RunCommand, job: Job, calls: list[dict[str, Any]]
) -> None:
    params = job.root / "params.yaml"
    to_file = run("generate", "it", "--params", params)
    assert make_job_run(job).sentence in to_file.out
    to_stream = run("generate", "it", "--params", params, "--output", "-")
    assert make_job_run(job).sentence not in to_stream.out
    assert make_job_run(job).sentence in to_stream.err


def test_a_reproduction_has_its_own_exit_code_only_when_asked(
    run: RunCommand, job: Job, calls: list[dict[str, Any]]
) -> None:
    params = job.root / "params.yaml"
    assert run("reproduce", "it", "--params", params).code == 0
    assert run("reproduce", "it", "--params", params, "--exit-code").code == 20
    assert run("reproduce", "it", "--params", params, "--json").json["answer"] == "outputs differ"
    assert run("reproduce", "it", "--params", params, "--restart").code == 0
    assert [how["restart"] for how in calls] == [False, False, False, True]


@pytest.mark.usefixtures("no_tracker")
def test_a_finished_checkpoint_needs_no_engine_no_prefect_and_no_tokenizer(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> Any:
        raise Stopped

    monkeypatch.setattr(story, "USED_AFTERWARDS", ())
    with pytest.raises(Stopped):
        generate(job, run_with=replace(GENERATE, restore=stop))
    monkeypatch.setenv("PREFECT_API_URL", NOWHERE)
    result, modules = modules_of_command(job.root, "generate", "it", "--json")
    assert (result.code, result.json["answer"], result.json["figures"]["resumed"]) == (0, "complete", 12)
    assert job.paths.outputs.exists()
    heavy = {"prefect", "torch", "sklearn", "matplotlib", "transformers", "sentence_transformers", "vllm", "ray", "dvc"}
    assert not heavy & modules
