"""A lock file so that one user's processes use the accelerator of one machine one after another, in any checkout."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock

from orderproof.job.errors import OrderproofError

LOCK_FILE = "accelerator.lock"

logger = logging.getLogger(__name__)


class AcceleratorError(OrderproofError):
    """The folder of the lock file cannot be used: why, and what to do."""


@contextlib.contextmanager
def hold_accelerator(waiting: Callable[[str], None] = logger.info) -> Iterator[None]:
    """Hold the accelerator's lock; the kernel releases it when the process dies.

    Args:
        waiting: called once with a message if another process holds the lock.

    Raises:
        AcceleratorError: the folder of the lock file belongs to another user.
    """
    lock = FileLock(lock_path())
    try:
        lock.acquire(timeout=0)
    except TimeoutError:
        waiting("another orderproof process uses the accelerator of this machine: waiting until it ends")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def lock_path() -> Path:
    """The lock file, in a folder of this user on this machine, outside any checkout, that nobody else may write to."""
    folder = Path(tempfile.gettempdir()) / f"orderproof-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise AcceleratorError(f"{folder} belongs to another user: remove it, or set TMPDIR to a folder of your own")
    return folder / LOCK_FILE
