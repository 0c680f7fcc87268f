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

# Names that promise a format; a name without any of these, such as `sorted.txt`, is the user's own business.
FORMAT_SUFFIXES = frozenset(
    {".jsonl", ".parquet", ".json", ".csv", ".tsv", ".xlsx", ".arrow", ".feather", ".gz", ".zst", ".bz2", ".xz", ".zip"}
)


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


def check_destination(name: str, suffix: str, destination: str | Path) -> None:
    """Check a destination before the work is done.

    Raises:
        ReorderError: its suffix is that of another format than the source `name` has, or its folder does not exist.
    """
    if str(destination) == STANDARD_STREAM:
        return
    if Path(destination).suffix.lower() in FORMAT_SUFFIXES - {suffix}:
        raise ReorderError(
            f"{destination}: rows are written in the format they are read in, and {name} is {suffix[1:]}. "
            f"Give a {suffix} file"
        )
    if not Path(destination).resolve().parent.is_dir():
        raise ReorderError(f"{destination}: its folder does not exist. Create it, or give another path")


def is_same_file(source: str | Path, destination: str | Path) -> bool:
    """Whether both names are of one file."""
    with contextlib.suppress(OSError):
        return os.path.samefile(source, destination)
    return False
