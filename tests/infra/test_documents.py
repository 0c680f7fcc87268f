"""What README.md, CONTRIBUTING.md and docs/ name is there: files, links, commands, options, targets and stages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML

from orderproof.cli.main import app
from orderproof.job.params import load_jobs

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_COMMANDS = [*DOCUMENTS, *(ROOT / name for name in ("params.yaml", "dvc.yaml", "Makefile", "infra/prefect.yaml"))]
PATH = re.compile(r"(?<![\w/.-])(?:tasks|flows|infra|tests|docs)/[\w./-]*\w(?![\w./-]*<)")  # and no placeholder
COMMAND = re.compile(r"(?<!from )(?<!mypy flows )orderproof ([a-z]+)((?: +(?:--?[a-z0-9-]+|[^\s`|]+))*)")
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
CODE = re.compile(r"```[a-z]*\n(.*?)```|(?<!`)`([^`]+)`(?!`)", re.DOTALL)
COMMANDS: dict[str, Any] = getattr(typer.main.get_command(app), "commands")  # noqa: B009  (a group has them)
NO_COMMANDS = {"compares", "decides", "knows", "measures", "refuses"}  # the program as the subject of a sentence


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


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_linked_file_is_there_with_the_heading_that_is_linked(document: Path) -> None:
    broken = set()
    for target in LINK.findall(document.read_text("utf-8")):
        path, _, heading = target.partition("#")
        linked = (document.parent / path).resolve() if path else document
        if not linked.exists() or (heading and heading not in _anchors(linked)):
            broken.add(target)
    assert broken == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_target_stage_and_module_that_is_named_is_there(document: Path) -> None:
    code = _code(document.read_text("utf-8"))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    stages = set(YAML(typ="safe", pure=True).load(ROOT / "dvc.yaml")["stages"])
    assert set(re.findall(r"(?m)^\s*make ([a-z-]+)", code)) <= targets
    assert set(re.findall(r"(?<![\w.-])([a-z-]+)@[\w-]+(?![\w.-])", code)) <= stages
    modules = set(re.findall(r"python -m ((?:flows|tasks|orderproof)[.a-z_]*)", code))
    assert {name for name in modules if not _is_module(name)} == set()


def test_this_test_finds_what_documents_name() -> None:
    """Each pattern matches something, or the claims above could not fail."""
    text = "\n".join(document.read_text("utf-8") for document in DOCUMENTS)
    code = _code(text)
    assert len(COMMAND.findall(text)) > 20
    assert len(PATH.findall(text)) > 5
    assert len(LINK.findall(text)) > 5
    assert "make demo" in code
    assert "measure@JOB" in code
    assert "python -m flows.measure" in code


def _code(text: str) -> str:
    """What a document shows as code, a piece a line."""
    return "\n".join(block or span for block, span in CODE.findall(text))


def _anchors(document: Path) -> set[str]:
    """The headings' anchors as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ +(.+)$", document.read_text("utf-8"))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_the_readmes_job_is_read(tmp_path: Path) -> None:
    block = re.search(r"```yaml\n(   jobs:.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert block is not None
    (tmp_path / "params.yaml").write_text("defaults: {}\n" + re.sub(r"(?m)^   ", "", block[1]))
    assert list(load_jobs(tmp_path / "params.yaml")) == ["my-evals"]
