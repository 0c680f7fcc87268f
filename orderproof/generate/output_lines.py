"""Results as JSON lines while a job runs, in the order of its prompts.

In: a checkpoint, and the places whose results were kept. Out: the rows of outputs.parquet, one object a line, each as
soon as all before it are there: with windows, a window at a time. Knows nothing of engines.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from orderproof.generate.checkpoint import Checkpoint, CheckpointError
from orderproof.generate.delivery import table_of
from orderproof.generate.result import ABSENT, FAILED
from orderproof.prompts.tail_lines import STANDARD_STREAM


class OutputLines:
    """Beginning with the results of earlier runs: whoever reads gets every line once."""

    def __init__(self, checkpoint: Checkpoint, sink: IO[bytes]) -> None:
        self._checkpoint, self._sink, self._next = checkpoint, sink, 0
        self._tried_again = set(np.flatnonzero(checkpoint.state == FAILED).tolist())
        self.catch_up()

    def kept(self, place: int) -> None:
        """A result was kept."""
        self._tried_again.discard(place)
        if place == self._next:
            self.catch_up()

    def catch_up(self) -> None:
        """Write what can be written.

        Raises:
            CheckpointError: nobody reads any more, or the disk is full.
        """
        try:
            before = self._next
            while self._next < len(self._checkpoint.state) and self._is_there(self._next):
                self._sink.write(self._lines_of(self._next))
                self._next += 1
            if self._next > before:
                self._sink.flush()
        except OSError as error:
            what = "whoever read the results went away" if isinstance(error, BrokenPipeError) else error.strerror
            raise CheckpointError(
                f"results cannot be handed on: {what}. They are kept in {self._checkpoint.folder}: run the same "
                "command again to go on"
            ) from None

    def _lines_of(self, place: int) -> bytes:
        result = self._checkpoint.read(place)
        assert result is not None
        rows = table_of([result]).to_pylist()
        return b"".join(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n" for row in rows)

    def _is_there(self, place: int) -> bool:
        return bool(self._checkpoint.state[place] != ABSENT) and place not in self._tried_again


@contextlib.contextmanager
def open_output(path: str, *prompts: Path) -> Iterator[IO[bytes]]:
    """A file, written anew; or `-`, the standard output, which nothing else writes to meanwhile.

    Args:
        prompts: files that are never overwritten.

    Raises:
        CheckpointError: the file cannot be written, or is one of prompts.
    """
    if path == STANDARD_STREAM:
        sys.stdout.flush()
        sink = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # what a library prints goes to standard error, and never between the lines
        try:
            yield sink
        finally:
            os.dup2(sink.fileno(), 1)
            with contextlib.suppress(OSError):  # told already: each line was flushed
                sink.close()
        return
    if _is_one_of(path, *prompts, Path("/dev/stdin")):
        raise CheckpointError(f"{path} holds the prompts and would be overwritten: name another file. Nothing was sent")
    try:
        opened = open(path, "wb")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}. Nothing was sent") from None
    try:
        yield opened
    finally:
        with contextlib.suppress(OSError):  # as above
            opened.close()


def _is_one_of(path: str, *files: Path) -> bool:
    for file in files:
        with contextlib.suppress(OSError):  # one of the two is not there
            if file.is_file() and os.path.samefile(path, file):
                return True
    return False
