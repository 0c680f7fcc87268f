"""Results as JSON lines while a job runs, in the order of its prompts: one line for each row of outputs.parquet."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from orderproof.generate.checkpoint import Checkpoint
from orderproof.generate.checkpoint_folder import CheckpointError
from orderproof.generate.delivery import outputs_table
from orderproof.generate.result import State
from orderproof.prompts.tail_lines import STANDARD_STREAM


class OutputLines:
    """Writes each result as soon as all before it are there, those of earlier runs first: every line once."""

    def __init__(self, checkpoint: Checkpoint, sink: IO[bytes]) -> None:
        self._checkpoint, self._sink, self._next = checkpoint, sink, 0
        self._retried = set(np.flatnonzero(checkpoint.states == State.FAILED).tolist())
        self._write_ready()

    def add(self, place: int) -> None:
        """A prompt's result is in the checkpoint now.

        Raises:
            CheckpointError: the reader has closed its end, or the disk is full.
        """
        self._retried.discard(place)
        if place == self._next:
            self._write_ready()

    def _write_ready(self) -> None:
        try:
            before = self._next
            while self._next < len(self._checkpoint.states) and self._is_ready(self._next):
                self._sink.write(self._lines_of(self._next))
                self._next += 1
            if self._next > before:
                self._sink.flush()
        except OSError as error:
            problem = "the program that read them has ended" if isinstance(error, BrokenPipeError) else error.strerror
            raise CheckpointError(
                f"--output: results cannot be written: {problem}. They are kept in {self._checkpoint.folder}. Run the "
                "same command again to resume"
            ) from None

    def _lines_of(self, place: int) -> bytes:
        result = self._checkpoint.read(place)
        assert result is not None
        rows = outputs_table([result]).to_pylist()
        return b"".join(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n" for row in rows)

    def _is_ready(self, place: int) -> bool:
        return bool(self._checkpoint.states[place] != State.ABSENT) and place not in self._retried


@contextlib.contextmanager
def open_output(path: str, *prompts: Path) -> Iterator[IO[bytes]]:
    """Open a new file; or `-`, the standard output, which nothing else can write to meanwhile.

    Args:
        prompts: files that are never overwritten.

    Raises:
        CheckpointError: the file cannot be written, or is one of `prompts`.
    """
    if path == STANDARD_STREAM:
        sys.stdout.flush()
        sink = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # what a library prints goes to standard error, and never between the lines
        try:
            yield sink
        finally:
            os.dup2(sink.fileno(), 1)
            with contextlib.suppress(OSError):  # reported already: each line was flushed
                sink.close()
        return
    if _is_one_of(path, *prompts, Path("/dev/stdin")):
        raise CheckpointError(f"{path} has the prompts and would be overwritten. Give another file. Nothing was sent")
    try:
        file = open(path, "wb")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}. Nothing was sent") from None
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):  # as above
            file.close()


def _is_one_of(path: str, *files: Path) -> bool:
    for file in files:
        with contextlib.suppress(OSError):  # either does not exist
            if file.is_file() and os.path.samefile(path, file):
                return True
    return False
