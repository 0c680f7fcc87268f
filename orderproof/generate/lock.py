"""One run at a time into data/<job>, and the name of the process that holds it. The kernel frees it when that dies."""

from __future__ import annotations

import contextlib
import fcntl  # and not filelock: status probes with a shared lock, which needs no right to write and blocks no other
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from orderproof.generate.checkpoint_folder import CheckpointError

LOCK_FILE = ".outputs.lock"
PROBE_S = 0.05  # longer than `holder_of` has the lock


@contextlib.contextmanager
def only_run(
    folder: Path, *, wait: bool, waiting: Callable[[str], None] | None = None, lock_file: str = LOCK_FILE
) -> Iterator[None]:
    """Hold a job's outputs: one run at a time, also across machines where the file system's locks reach.

    Args:
        folder: data/<job>.
        wait: wait until another run ends; otherwise refuse.
        waiting: called with the holder before waiting.
        lock_file: in the folder; a reproduction has its own.

    Raises:
        CheckpointError: another run is active, the folder cannot be written, or its file system has no locks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / lock_file, "ab+", buffering=0)  # noqa: SIM115  (held to the end of the block)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error.strerror}. Nothing was sent") from None
    with lock:
        if not _try_lock(lock, folder):
            holder = _read_holder(lock)
            if not wait:
                raise CheckpointError(
                    f"{folder} is in use: {holder} generates there. Nothing was sent. Wait until it ends, or set "
                    "`when_running: wait` under `generate` in params.yaml"
                )
            if waiting:
                waiting(holder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):  # on a full disk the holder stays unnamed
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield


def holder_of(folder: Path) -> str | None:
    """The process that generates into data/<job> now, as "process 123 on host"; None: no process. Changes nothing."""
    try:
        lock = open(folder / LOCK_FILE, "rb", buffering=0)  # noqa: SIM115  (closed below)
    except OSError:
        return None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read_holder(lock)
        except OSError:  # a file system without locks
            return None
        return None


def _read_holder(lock: IO[bytes]) -> str:
    lock.seek(0)
    return lock.read().decode("utf-8", "replace").strip() or "another process"


def _try_lock(lock: IO[bytes], folder: Path) -> bool:
    """Take the lock if no run has it. A status command can have it for a moment, so this tries twice."""
    for pause_s in (PROBE_S, 0):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(pause_s)
        except OSError as error:
            raise CheckpointError(
                f"{folder} cannot be locked against a second run: {error.strerror}. Move the project to a file system "
                "that has locks. Nothing was sent"
            ) from None
    return False
