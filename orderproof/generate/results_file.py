"""The results of an unfinished job in one append-only file, results.jsonl: one line for each result.

    checksum (crc32, 8 hex digits) · state (+ complete, ~ incomplete, - failed) · place · the result as JSON

SQLite was measured in its place: 2.6 times as long per result (76 µs to 31), 14 times as many bytes written, no use on
network file systems in WAL mode; and of 150 flipped bits it returned 118 unnoticed and lost the whole table to 16.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import Completion
from orderproof.generate.checkpoint_folder import RESULTS_FILE, CheckpointError, cannot_write
from orderproof.generate.result import Result, State

SYNC_S = 1.0
MARKS = {State.COMPLETE: b"+", State.INCOMPLETE: b"~", State.FAILED: b"-"}
STATES = {mark: state for state, mark in MARKS.items()}
HAS_OUTPUT = np.array([state in (State.COMPLETE, State.INCOMPLETE) for state in State])  # bool[states]


class ResultsFile:
    """results.jsonl while one run appends to it; 9 bytes in memory for each prompt.

    A line is written before `append` returns, so a killed process loses no result. A thread syncs the file every
    SYNC_S, so a machine that loses power loses the results of about that time.
    """

    def __init__(self, folder: Path, prompts: int) -> None:
        """Read which results the file holds; create it where there is none.

        Raises:
            CheckpointError: it cannot be read or written.
        """
        self.folder = folder
        self.damaged = 0  # lines that do not fit their checksum
        self._states, self._offsets = np.zeros(prompts, np.int8), np.full(prompts, -1, np.int64)
        self._prompts = prompts
        self._sync_error: OSError | None = None
        self._lock, self._closing, self._unsynced = threading.Lock(), threading.Event(), False
        with contextlib.ExitStack() as opened:  # closed again where a later step fails
            try:
                self._file = os.open(folder / RESULTS_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
                opened.callback(os.close, self._file)
                self._reader = opened.enter_context(open(folder / RESULTS_FILE, "rb"))
                self._end = self._recover()
            except OSError as error:
                raise cannot_write(folder, error) from None
            self._opened = opened.pop_all()
        self._syncing = threading.Thread(target=self._sync_regularly, daemon=True)
        self._syncing.start()

    @property
    def states(self) -> NDArray[np.int8]:
        """int8[N]: the `State` of each prompt."""
        return self._states[: self._prompts]

    def append(self, result: Result) -> None:
        """Write a result.

        Raises:
            CheckpointError: it cannot be written, the file is closed, or the prompt has an output already.
        """
        with self.writing():
            if HAS_OUTPUT[self._states[result.place]]:
                raise CheckpointError(f"{self.folder}: a second output for prompt {result.id!r} was refused")
            line = encode(result)
            try:
                if self._sync_error:
                    raise self._sync_error
                self._write(line)
            except OSError as error:
                raise cannot_write(self.folder, error) from None
            self._states[result.place], self._offsets[result.place] = result.state, self._end
            self._end += len(line)
            self._unsynced = True

    def read(self, place: int) -> Result | None:
        """The result of a prompt; None: none yet."""
        offset = int(self._offsets[place])
        if offset < 0:
            return None
        self._reader.seek(offset)
        return decode(self._reader.readline())

    def grow(self, prompts: int) -> None:
        """Make room for more prompts: twice as much as needed, so that a million windows cost no more than their sum.

        Call it inside `writing`.
        """
        if prompts > len(self._states):
            missing = 2 * prompts - len(self._states)
            self._states = np.pad(self._states, (0, missing), constant_values=State.ABSENT)
            self._offsets = np.pad(self._offsets, (0, missing), constant_values=-1)
        self._prompts = prompts

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Nothing else writes meanwhile, and the file is open.

        A thread that still reads prompts when its run fails must not write: the next run may be active.
        """
        with self._lock:
            if self._closing.is_set():
                raise CheckpointError(f"{self.folder} is closed: its run has ended")
            yield

    def close(self) -> None:
        """Sync and close."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
        self._syncing.join()
        with contextlib.suppress(OSError):
            os.fsync(self._file)
        self._opened.close()

    def _recover(self) -> int:
        """Find the whole results, cut a torn last line, and return the end of the file."""
        end = 0
        for line in self._reader:
            if not line.endswith(b"\n"):
                os.ftruncate(self._file, end)
                break
            head = decode_head(line)
            if head is None or head[1] >= self._prompts:
                self.damaged += 1
            elif not HAS_OUTPUT[self._states[head[1]]]:
                state, place = head
                self._states[place], self._offsets[place] = state, end
            end += len(line)
        return end

    def _write(self, line: bytes) -> None:
        """The whole line or nothing: a full disk takes part of a line and reports it only at the next write."""
        written = 0
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            os.ftruncate(self._file, self._end)
            raise

    def _sync_regularly(self) -> None:
        while not self._closing.wait(SYNC_S):
            if self._unsynced:
                self._unsynced = False
                try:
                    os.fsync(self._file)
                except OSError as error:  # the next `append` raises it
                    self._sync_error = error


def count_outputs(path: Path, prompts: int) -> int:
    """Prompts whose output a results file holds. Changes nothing. Raises OSError."""
    states = np.zeros(prompts, np.int8)
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as source:
        for line in source:
            head = decode_head(line) if line.endswith(b"\n") else None
            if head and head[1] < prompts and not HAS_OUTPUT[states[head[1]]]:
                states[head[1]] = head[0]
    return int(HAS_OUTPUT[states].sum())


def encode(result: Result) -> bytes:
    """The line of a result, newline included."""
    fields = {**_without_none(result), "completions": [_without_none(each) for each in result.completions]}
    del fields["place"]
    content = json.dumps(fields, separators=(",", ":")).encode()
    body = b"%s %d %s" % (MARKS[result.state], result.place, content)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode_head(line: bytes) -> tuple[State, int] | None:
    """State and place of a line; None: it does not fit its checksum."""
    checksum, _, body = line[:-1].partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    mark, place, _ = body.split(b" ", 2)
    return STATES[mark], int(place)


def decode(line: bytes) -> Result:
    """The result of a line that fits its checksum."""
    _, _, place, content = line.split(b" ", 3)
    fields: dict[str, Any] = json.loads(content)
    completions = tuple(Completion(**completion) for completion in fields["completions"])
    return Result(int(place), **{"asked_tokens": None, **fields, "completions": completions})


def _without_none(value: Result | Completion) -> dict[str, Any]:
    return {name: field for name, field in vars(value).items() if field is not None}
