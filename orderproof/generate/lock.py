"""One run at a time into data/<job>, and who it is.

In: a job's folder. Out: a context in which no other run generates into it; or a `CheckpointError`. Knows nothing of
what the run does. The kernel releases the lock when a process dies, so nothing is left behind that had to be cleared.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from orderproof.generate.checkpoint import CheckpointError

LOCK_FILE = ".outputs.lock"
ASKING_S = 0.05  # more than `holder_of` holds the lock


@contextlib.contextmanager
def only_run(
    folder: Path, *, wait: bool, waiting: Callable[[str], None] | None = None, lock_file: str = LOCK_FILE
) -> Iterator[None]:
    """Hold a job's outputs: one run at a time, also across machines where the file system's locks reach.

    Args:
        folder: data/<job>.
        lock_file: what is held in it; a reproduction has a lock of its own.
        wait: wait for another run to end; otherwise refuse.
        waiting: called with who holds it, before waiting.

    Raises:
        CheckpointError: another run is at work, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / lock_file, "ab+", buffering=0)  # noqa: SIM115  (held to the end of the block)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error.strerror}. Nothing was sent") from None
    with lock:
        if not _taken(lock, folder):
            holder = _holder(lock)
            if not wait:
                raise CheckpointError(
                    f"{holder} generates into {folder} already, so this run does not begin. Wait for it to end, or let "
                    "runs wait by themselves with `when_running: wait` under `generate` in params.yaml"
                )
            if waiting:
                waiting(holder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):  # on a full disk whoever asks is told of another process
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield


def holder_of(folder: Path) -> str | None:
    """Who generates into data/<job> now, as it says itself; None: nobody. Changes nothing there."""
    try:
        lock = open(folder / LOCK_FILE, "rb", buffering=0)  # noqa: SIM115  (closed below)
    except OSError:
        return None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(lock)
        except OSError:  # a file system without locks
            return None
        return None


def _holder(lock: IO[bytes]) -> str:
    lock.seek(0)
    return lock.read().decode("utf-8", "replace").strip() or "another process"


def _taken(lock: IO[bytes], folder: Path) -> bool:
    """Take the lock if nobody generates. Whoever only asks for the holder has it for a moment, so it is tried twice."""
    for pause_s in (ASKING_S, 0):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(pause_s)
        except OSError as error:
            raise CheckpointError(
                f"{folder} cannot be locked against a second run: {error.strerror}. Keep the project on a file system "
                "that has locks. Nothing was sent"
            ) from None
    return False
