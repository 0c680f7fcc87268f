"""Where `orderproof order` and `restore` write: a file that is complete or not changed, a pipe, or standard output."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from orderproof.job.errors import OrderproofError
from orderproof.job.files import atomic_file
from orderproof.prompts.tail_lines import STANDARD_STREAM


class ReorderError(OrderproofError):
    """Rows that cannot be ordered or restored: file, line and id, and what to do."""


@contextlib.contextmanager
def open_destination(destination: str | Path) -> Iterator[IO[bytes]]:
    """Open a destination for writing. An error within the block leaves a file as it was.

    Raises:
        ReorderError: it is a folder, or cannot be written.
    """
    standard = str(destination) == STANDARD_STREAM
    path = Path(destination).resolve()
    if path.is_dir() and not standard:
        raise ReorderError(f"{destination}: is a folder. Give the name of a file")
    try:
        with contextlib.ExitStack() as stack:
            if standard:
                yield sys.stdout.buffer
            elif path.is_file() or not path.exists():
                yield stack.enter_context(atomic_file(path))
            else:  # a pipe or a device, which no file may replace
                yield stack.enter_context(open(path, "wb"))
    except BrokenPipeError:
        raise  # the reader has stopped reading, which is not an error of the user's
    except OSError as error:
        raise ReorderError(
            f"{destination}: cannot be written: {error.strerror}. Check the path and the free space"
        ) from None


def check_file_type(name: str, suffix: str, destination: str | Path) -> None:
    """Raise ReorderError if the destination's suffix says another file type than the source `name` has."""
    if Path(destination).suffix.lower() in {".jsonl", ".parquet"} - {suffix}:
        raise ReorderError(
            f"{destination}: rows are written in the format they are read in, and {name} is {suffix[1:]}. "
            f"Give a {suffix} file"
        )


def is_same_file(source: str | Path, destination: str | Path) -> bool:
    """Whether both names are of one file."""
    with contextlib.suppress(OSError):
        return os.path.samefile(source, destination)
    return False
