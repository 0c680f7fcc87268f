"""Surroundings in which nothing is wrong, and a project with one job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orderproof.doctor import machine
from tests.support.doctor_project import MOE, make_model, write_params


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Surroundings in which nothing is amiss, so that a test sees what it spoils."""
    for name in (
        "MLFLOW_TRACKING_URI",
        "PREFECT_API_URL",
        "PREFECT_PROFILE",
        "PREFECT_PROFILES_PATH",
        machine.KV_SPACE,
    ):
        monkeypatch.delenv(name, raising=False)
    for name in machine.THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for role in ("NAME", "EMAIL"):
        monkeypatch.setenv(f"GIT_AUTHOR_{role}", f"a {role}")
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with one job whose prompts and model are there."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "p.jsonl").write_text('{"id": "a", "text": "x"}\n')
    make_model(folder / "m", MOE)
    write_params(folder)
    return folder
