"""One run at a time, and clear errors where the disk is full or the file system has no locks."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orderproof.generate.checkpoint_folder import CheckpointError
from orderproof.generate.lock import LOCK_FILE, holder_of, only_run

HOLD = """
import sys, time
from pathlib import Path
from orderproof.generate.lock import only_run
with only_run(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_run_is_refused_and_the_holder_is_named(tmp_path: Path) -> None:
    with (
        only_run(tmp_path, wait=False),
        pytest.raises(CheckpointError, match=rf"process {os.getpid()} on .*when_running: wait"),
        only_run(tmp_path, wait=False),
    ):
        pytest.fail("a second run began")


def test_a_second_run_waits_until_the_first_ends(tmp_path: Path) -> None:
    waiting, entered = threading.Event(), threading.Event()

    def second() -> None:
        with only_run(tmp_path, wait=True, waiting=lambda holder: waiting.set()):
            entered.set()

    with only_run(tmp_path, wait=False):
        waiter = threading.Thread(target=second)
        waiter.start()
        assert waiting.wait(30)
        assert not entered.is_set()
    assert entered.wait(30)
    waiter.join()


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as run:
        assert run.stdout
        run.stdout.readline()
        assert holder_of(tmp_path) is not None
        assert f"process {run.pid} on" in str(holder_of(tmp_path))
        run.send_signal(signal.SIGKILL)
    assert holder_of(tmp_path) is None
    with only_run(tmp_path, wait=False):
        pass


def test_asking_for_the_holder_keeps_no_run_from_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / LOCK_FILE).touch()
    asking = open(tmp_path / LOCK_FILE, "rb")  # noqa: SIM115  (closed while the run tries again)
    fcntl.flock(asking, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda pause_s: asking.close())
    with only_run(tmp_path, wait=False):  # `wait=False` would refuse
        assert holder_of(tmp_path) is not None


def test_two_that_ask_at_once_do_not_take_each_other_for_a_run(tmp_path: Path) -> None:
    with only_run(tmp_path, wait=False):
        pass
    with open(tmp_path / LOCK_FILE, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # as another status command has it
        assert holder_of(tmp_path) is None


def test_asking_for_the_holder_changes_nothing(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_run_begins_on_a_full_disk_and_its_holder_is_then_unnamed(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with only_run(tmp_path, wait=False):
            held = holder_of(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (held, holder_of(tmp_path)) == ("another process", None)


def test_a_file_system_without_locks_is_reported_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unknown)
    with pytest.raises(CheckpointError, match="No locks available"), only_run(tmp_path, wait=True):
        pytest.fail("it began")
    (tmp_path / LOCK_FILE).touch()
    assert holder_of(tmp_path) is None


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(CheckpointError, match="Not a directory"), only_run(tmp_path / "data" / "job", wait=False):
        pytest.fail("it began")
