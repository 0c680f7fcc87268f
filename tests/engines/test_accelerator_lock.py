"""One accelerator serves one process at a time, also across checkouts, and a process that dies releases it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from orderproof.engines.accelerator_lock import AcceleratorError, hold_accelerator, lock_path

# Holds the accelerator until its standard input ends.
HOLDER = """
import sys
from orderproof.engines.accelerator_lock import hold_accelerator
print("started", flush=True)
with hold_accelerator(lambda message: print("waits", flush=True)):
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def start_holder(checkout: Path) -> subprocess.Popen[str]:
    checkout.mkdir()
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", HOLDER], cwd=checkout, stdin=pipe, stdout=pipe, text=True)


def next_words(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


def test_processes_in_two_checkouts_exclude_each_other(tmp_path: Path) -> None:
    first = start_holder(tmp_path / "a")
    assert next_words(first, 2) == ["started", "holds"]
    second = start_holder(tmp_path / "b")
    assert next_words(second, 2) == ["started", "waits"]
    with pytest.raises(TimeoutError):
        FileLock(lock_path()).acquire(timeout=0)
    first.communicate()  # ends its standard input
    assert next_words(second, 1) == ["holds"]
    second.communicate()
    assert (first.returncode, second.returncode) == (0, 0)


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    first = start_holder(tmp_path / "a")
    assert next_words(first, 2) == ["started", "holds"]
    first.kill()
    first.communicate()
    messages: list[str] = []
    with hold_accelerator(messages.append):
        assert messages == []


def test_the_lock_is_released_and_only_this_user_can_reach_it() -> None:
    with hold_accelerator(), pytest.raises(TimeoutError):
        FileLock(lock_path()).acquire(timeout=0)
    FileLock(lock_path()).acquire(timeout=0)
    assert lock_path().parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_placed_there_by_another_user_is_refused(temporary_folder: Path) -> None:
    theirs = temporary_folder / "theirs"
    theirs.mkdir()
    (temporary_folder / f"orderproof-{os.getuid()}").symlink_to(theirs)
    with pytest.raises(AcceleratorError, match="TMPDIR"), hold_accelerator():
        pass
    assert list(theirs.iterdir()) == []
