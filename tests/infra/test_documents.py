"""What README.md, CONTRIBUTING.md and docs/ name is there: files, and commands with their options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from orderproof.cli.main import app
from orderproof.job.params import load_jobs

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_COMMANDS = [*DOCUMENTS, *(ROOT / name for name in ("params.yaml", "dvc.yaml", "Makefile", "infra/prefect.yaml"))]
PATH = re.compile(r"(?<![\w/.-])(?:tasks|flows|infra|tests|docs)/[\w./-]*\w(?![\w./-]*<)")  # and no placeholder
COMMAND = re.compile(r"orderproof ([a-z]+)((?: +(?:--?[a-z0-9-]+|[^\s`|]+))*)")
COMMANDS: dict[str, Any] = getattr(typer.main.get_command(app), "commands")  # noqa: B009  (a group has them)
NO_COMMANDS = {"compares", "knows", "measures", "refuses"}  # the program as the subject of a sentence


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_is_named_is_there(document: Path) -> None:
    named = set(PATH.findall(document.read_text("utf-8")))
    assert {path for path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("document", WITH_COMMANDS, ids=lambda path: path.name)
def test_every_command_that_is_named_is_there_with_its_options(document: Path) -> None:
    unknown = set()
    for name, rest in COMMAND.findall(document.read_text("utf-8")):
        if name in NO_COMMANDS:
            continue
        options = {option for one in COMMANDS[name].params for option in one.opts} if name in COMMANDS else set()
        unknown |= {f"{name} {word}" for word in re.findall(r"(?<= )--?[a-z][a-z0-9-]*", rest) if word not in options}
        unknown |= {name} - COMMANDS.keys()
    assert unknown == set()


def test_the_readmes_job_is_read(tmp_path: Path) -> None:
    block = re.search(r"```yaml\n(   jobs:.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert block is not None
    (tmp_path / "params.yaml").write_text("defaults: {}\n" + re.sub(r"(?m)^   ", "", block[1]))
    assert list(load_jobs(tmp_path / "params.yaml")) == ["my-evals"]
