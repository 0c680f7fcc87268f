"""One accelerator is one job's at a time, also between checkouts, and whoever dies lets go of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from flows.accelerator import AcceleratorError, accelerator

# Tells when it holds the accelerator, and holds it until its standard input ends.
HOLD = """
import sys
from flows.accelerator import accelerator
print("started", flush=True)
with accelerator():
    print("holds", flush=True)
    sys.stdin.read()
print("ended", flush=True)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's folder for temporary files, and no Prefect server."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return tmp_path


def lock_file(machine: Path) -> Path:
    return machine / f"orderproof-{os.getuid()}" / "accelerator.lock"


def holder(checkout: Path) -> subprocess.Popen[str]:
    checkout.mkdir()
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", HOLD], cwd=checkout, stdin=pipe, stdout=pipe, text=True)


def test_without_a_server_two_checkouts_exclude_each_other(machine: Path, tmp_path: Path) -> None:
    first = holder(tmp_path / "one")
    assert first.stdout is not None
    assert [first.stdout.readline(), first.stdout.readline()] == ["started\n", "holds\n"]
    second = holder(tmp_path / "two")
    assert second.stdout is not None
    assert second.stdout.readline() == "started\n"
    with pytest.raises(TimeoutError):
        FileLock(lock_file(machine)).acquire(timeout=0)
    first.communicate()  # its standard input ends, and so it lets go
    assert second.stdout.readline() == "holds\n"
    second.communicate()
    assert (first.returncode, second.returncode) == (0, 0)


def test_who_is_killed_holds_nothing(machine: Path, tmp_path: Path) -> None:
    first = holder(tmp_path / "one")
    assert first.stdout is not None
    assert [first.stdout.readline(), first.stdout.readline()] == ["started\n", "holds\n"]
    first.kill()
    first.communicate()
    with accelerator():
        assert lock_file(machine).exists()


def test_the_lock_lies_where_nobody_else_can_reach_it(machine: Path) -> None:
    with accelerator(), pytest.raises(TimeoutError):
        FileLock(lock_file(machine)).acquire(timeout=0)
    FileLock(lock_file(machine)).acquire(timeout=0)
    assert lock_file(machine).parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_laid_there_by_somebody_else_is_refused(machine: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    lock_file(machine).parent.symlink_to(tmp_path / "theirs")
    with pytest.raises(AcceleratorError, match="belongs to somebody else"), accelerator():
        pass
    assert list((tmp_path / "theirs").iterdir()) == []
