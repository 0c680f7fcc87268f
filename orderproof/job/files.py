"""Files that are whole or absent: write a temporary file beside, fsync, rename."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from orderproof.job.errors import OrderproofError


class FileError(OrderproofError, OSError):
    """A file that cannot be written. Also an OSError, for callers that have a better message."""

    @classmethod
    def of(cls, error: OSError, path: Path) -> FileError:
        return cls(error.errno, error.strerror or str(error), str(path))

    def __str__(self) -> str:
        return (
            f"{self.filename} cannot be written: {self.strerror}. Free some space, or fix the folder or its "
            "permissions, and run the same command again"
        )


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[Any]]:
    """Open a binary file that appears at `path` only if the block ends without an error."""
    with atomic_files(path) as (sink,):
        yield sink


@contextlib.contextmanager
def atomic_files(*paths: Path) -> Iterator[list[IO[Any]]]:
    """Open binary files that appear only if the block ends without an error: one after the other, once all are on disk.

    Raises:
        FileError: a file cannot be written.
    """
    parts: list[str] = []
    try:
        with contextlib.ExitStack() as opened:
            sinks: list[IO[Any]] = []
            for path in paths:
                descriptor, name = _open_part(path)
                parts.append(name)
                sinks.append(opened.enter_context(os.fdopen(descriptor, "wb")))
            yield sinks
            for sink in sinks:
                sink.flush()
                os.fchmod(sink.fileno(), 0o666 & ~_umask())  # mkstemp's 0600 would hide it from the user's group
                os.fsync(sink.fileno())
        for name, path in zip(parts, paths, strict=True):
            os.replace(name, path)
            sync_folder(path.parent)
    except BaseException as error:
        for name in parts:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        if isinstance(error, OSError) and error.filename is None:  # a failed write has no name, a failed open has
            raise FileError.of(error, paths[0]) from None
        raise


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file or nothing."""
    with atomic_file(path) as sink:
        sink.write(content.encode() if isinstance(content, str) else content)


def append_line(path: Path, line: str) -> None:
    """Append one line durably; a reader may find the last line torn after a crash, never an earlier one."""
    try:
        with open(path, "ab") as sink:
            sink.write(line.encode() + b"\n")
            sink.flush()
            os.fsync(sink.fileno())
    except OSError as error:
        raise FileError.of(error, path) from None


def _open_part(path: Path) -> tuple[int, str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise FileError.of(error, path) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
