"""Without a Prefect server, the flows' context is the machine's lock file."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from flows.accelerator import accelerator
from orderproof.engines.accelerator_lock import lock_path


def test_without_a_server_the_lock_file_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with accelerator(), pytest.raises(TimeoutError):
        FileLock(lock_path()).acquire(timeout=0)
    FileLock(lock_path()).acquire(timeout=0)
