"""The command as a shell calls it: help, wrong usage, interrupts and streams that cannot be used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML

from orderproof.cli import main
from tests.support.command_line import JOB, RunCommand, modules_of_command

COMMANDS = sorted(typer.main.get_group(main.app).commands)
OF_A_JOB = (
    "plan",
    "capture",
    "lossy",
    "measure",
    "generate",
    "reproduce",
    "decide",
    "demote",
    "validate",
    "status",
    "log",
)
OF_A_MODEL = ("plan", "capture", "lossy", "measure", "generate", "reproduce", "validate")

# -- help --------------------------------------------------------------------------------------------------------------


def test_the_commands_are_those_of_the_readme() -> None:
    assert set(COMMANDS) == {*OF_A_JOB, "order", "restore", "doctor", "ui", "init"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(run: RunCommand, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = run(command, "--help")
    assert result.code == 0
    assert f"orderproof {command}" in result.out.split("Examples:")[1]


def test_help_imports_none_of_the_heavy_tools(tmp_path: Path) -> None:
    result, modules = modules_of_command(tmp_path, "--help")
    heavy = {
        "prefect", "mlflow", "torch", "vllm", "sklearn", "pandas", "great_expectations", "matplotlib", "dvc", "pyarrow"
    }  # fmt: skip
    assert "Usage" in result.out
    assert "orderproof.cli.main" in modules
    assert not heavy & modules


def test_the_installed_command_runs() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("orderproof"), "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage" in done.stdout


def test_no_command_at_all_is_wrong_usage(run: RunCommand) -> None:
    assert run().code == 2


# -- wrong usage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", OF_A_JOB)
def test_an_unknown_job_is_one_line_that_names_the_nearest(run: RunCommand, project: Path, command: str) -> None:
    run(command, "othr").assert_refused(2, "'othr'", "did you mean 'other'?")


@pytest.mark.parametrize("command", OF_A_JOB)
def test_a_missing_params_file_is_one_line_that_names_the_option(run: RunCommand, command: str) -> None:
    run(command, "it").assert_refused(2, "params.yaml", "--params")


@pytest.mark.parametrize("command", OF_A_JOB)
def test_a_misspelt_key_is_refused_before_anything_starts(run: RunCommand, project: Path, command: str) -> None:
    YAML(typ="safe", pure=True).dump({"defaults": {}, "jobs": {"it": {**JOB, "promts": "x"}}}, project / "params.yaml")
    run(command, "it").assert_refused(2, "jobs.it.promts", "did you mean 'prompts'?")


@pytest.mark.parametrize("command", OF_A_MODEL)
def test_a_missing_model_is_refused_before_anything_starts(run: RunCommand, project: Path, command: str) -> None:
    run(command, "it").assert_refused(1, str(project / "m"), "hf download")
    assert [path.name for path in project.iterdir()] == ["params.yaml"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("measure",),
        ("nonsense",),
        ("decide", "it", "--nonsense"),
        ("order", "p", "-o", "q", "--window", "1"),
        ("capture", "it", "--prompts", "1"),
        ("lossy", "it", "--k0", "0"),
        ("lossy", "it", "--blocks", "4"),
        ("ui", "--port", "0"),
    ],
)
def test_words_and_values_that_no_command_knows_are_wrong_usage(
    run: RunCommand, project: Path, arguments: tuple[str, ...]
) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err


# -- interrupts and failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "becomes", [KeyboardInterrupt, ImportError, FileNotFoundError(2, "gone", "a file"), SystemExit(130)]
)
def test_an_interrupt_is_one_message_whatever_a_library_turns_it_into(
    becomes: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise becomes from None

    monkeypatch.setattr(main, "app", interrupted)
    monkeypatch.setattr(main, "interrupts", [])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as ended:
            main.main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130
    assert capsys.readouterr().err.startswith("orderproof: interrupted")


def test_a_file_that_nobody_expected_to_fail_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").touch()
    monkeypatch.setattr(main, "app", (tmp_path / "data" / "prompts").mkdir)
    monkeypatch.setattr(main, "interrupts", [])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    message = capsys.readouterr().err
    assert message.startswith(f"orderproof: {tmp_path / 'data' / 'prompts'}: Not a directory")
    assert message.count("\n") == 1


# -- standard streams --------------------------------------------------------------------------------------------------


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f'{{"id": "p{k}", "text": "{"x" * 200}", "label": "l{k % 3}"}}\n' for k in range(20)))
    return path


def test_a_reader_that_goes_away_is_no_traceback(prompts: Path) -> None:
    command = f"{sys.executable} -m orderproof.cli order {prompts} -o - --method label | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("order - -o sorted.jsonl --method label <&-", "standard input: is closed"),
        ("order {prompts} -o /dev/full --method label", "/dev/full: cannot be written: No space left on device"),
        ("order {prompts} -o sorted.jsonl --method label --json > /dev/full", "answer cannot be written"),
        ("--help > /dev/full", "answer cannot be written"),
    ],
)
def test_a_standard_stream_that_cannot_be_used_is_one_message(
    prompts: Path, tmp_path: Path, words: str, message: str
) -> None:
    command = f"{sys.executable} -m orderproof.cli {words.format(prompts=prompts)}"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, cwd=tmp_path, env=buffered, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert message in done.stderr


def test_a_closed_standard_input_does_not_matter_to_a_command_that_reads_files(prompts: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m orderproof.cli order {prompts} -o sorted.jsonl --method label <&-"
    subprocess.run(command, cwd=tmp_path, shell=True, check=True)
    assert (tmp_path / "sorted.jsonl").read_bytes()
