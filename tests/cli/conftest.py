"""The command in an empty folder, and a project with two jobs of which nothing is there yet."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from orderproof.cli import main
from tests.support.command_line import JOB, Result, RunCommand


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RunCommand]:
    """Run the command in an empty folder, as the shell would."""
    monkeypatch.chdir(tmp_path)

    def orderproof(*arguments: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["orderproof", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main()
        captured = capfd.readouterr()
        return Result(int(ended.value.code or 0), captured.out, captured.err)

    yield orderproof
    logging.captureWarnings(False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two jobs, `it` and `other`."""
    jobs = {"it": JOB, "other": {**JOB, "prompts": "none.jsonl"}}
    YAML(typ="safe", pure=True).dump({"defaults": {}, "jobs": jobs}, tmp_path / "params.yaml")
    return tmp_path
