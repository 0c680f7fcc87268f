"""One project for all tests that need a real MLflow: making its database takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tracked_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project with a local store."""
    return tmp_path_factory.mktemp("project")
