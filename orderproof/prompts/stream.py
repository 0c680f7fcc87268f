"""Prompts of a pipe or a growing file, spooled to disk before they are used, in windows as they become complete.

The spool holds the lines unchanged, so that a killed job can continue: the stream must then begin with the same lines
again, otherwise it is refused. Each prompt takes 24 bytes of memory.
"""

from __future__ import annotations

import array
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from orderproof.prompts.file_kinds import is_compressed, kind_of
from orderproof.prompts.ids import IdSet, id_key
from orderproof.prompts.json_lines import EXAMPLE
from orderproof.prompts.prompt import Prompt, PromptError, duplicate_id, flawed_prompt
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.row_reader import RowReader
from orderproof.prompts.tail_lines import LineTail

logger = logging.getLogger(__name__)

LINGER_S = 5.0
WAIT_S = 0.1  # for the next line, between two looks at whether the engine starves

Starving = Callable[[], bool]  # whether the engine has less work than it could do


@dataclass(frozen=True)
class Stream:
    """A source of prompts, and how long to wait for them."""

    source: str  # `-` for the standard input, or a path
    follow_s: float | None = None  # seconds without growth after which a file has ended; None: it does not grow
    linger_s: float = LINGER_S  # how long an incomplete window waits for more prompts while the engine starves


class PromptStream:
    """The prompts read so far, in the stream's order. A context manager."""

    def __init__(self, stream: Stream, spool: Path, defaults: RequestDefaults | None = None) -> None:
        """Open the stream. Where the spool holds lines of an earlier run, check that the stream begins with them.

        Args:
            spool: a file that is created, or continued.
            defaults: of the job; None: the rows belong to no job.

        Raises:
            PromptError: the stream cannot be read, or does not begin with the lines of the spool.
        """
        if is_compressed(Path(stream.source)) or kind_of(Path(stream.source)) not in (None, ".jsonl"):
            problem = "cannot be streamed: it is not JSON lines, or compressed"
            raise PromptError(Path(stream.source), problem, "Give JSON lines", flaw="file")
        self.spool, self._linger_s = spool, stream.linger_s
        self._tail = LineTail(stream.source, stream.follow_s)
        self.path = self._tail.path
        self.files = (self.path,)
        self._reader, self._noticed = RowReader(self.path, defaults), 0
        self._tolerates = defaults is not None and defaults.job.generate.tolerated_failures > 0
        self._offsets, self._numbers = array.array("q"), array.array("q")
        self._ids = IdSet()
        self._error: PromptError | None = None  # raised after the windows before it
        self._number = self._end = 0  # lines and bytes in the spool
        self._lock, self._closed = threading.RLock(), False
        try:
            self._file = os.open(spool, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            self._tail.close()
            raise self._unwritable(error) from None
        try:
            self._recover()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._offsets)

    def __enter__(self) -> PromptStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """May be called while another thread waits for a window, which then gets none."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._tail.close()
                os.close(self._file)

    def read(self, rows: Sequence[int]) -> list[Prompt]:
        """Some prompts, by their places in the stream; none after `close`."""
        with self._lock:
            return [] if self._closed else [self._read(row) for row in rows]

    def has_more(self, start: int) -> bool:
        """Wait for a prompt after the first `start`. Returns whether there is one.

        Raises:
            PromptError: the next line is no prompt, or there are no prompts at all.
        """
        while len(self) <= start and not self._ended:
            self._receive()
        if len(self) <= start and self._error:
            raise self._error
        if not len(self):
            remedy = f"Give at least one, such as {EXAMPLE}"
            raise PromptError(self.path, "holds no prompts", remedy, flaw="file")
        return len(self) > start

    def windows(self, start: int, size: int, starving: Starving) -> Iterator[range]:
        """Places of `size` prompts from `start` on, each window as soon as it is complete and on disk.

        A window is shorter at the stream's end, and when the engine is `starving` and nothing arrived for `linger_s`.

        Raises:
            PromptError: a line is no prompt, or repeats an id; raised after the windows before it.
        """
        while True:
            self._wait_for(start, size, starving)
            stop = min(len(self), start + size)
            if stop < start + size and self._error:
                raise self._error
            if stop == start or self._closed:
                return
            self._sync()
            yield range(start, stop)
            start = stop

    @property
    def _ended(self) -> bool:
        return self._tail.ended or self._closed or self._error is not None

    def _wait_for(self, start: int, size: int, starving: Starving) -> None:
        arrived = time.monotonic()
        while len(self) < start + size and not self._ended:
            if self._receive():
                arrived = time.monotonic()
            elif len(self) > start and time.monotonic() - arrived >= self._linger_s and starving():
                return

    def _receive(self) -> bool:
        """Store the lines that are there. Returns whether there were any."""
        with self._lock:
            lines = [] if self._closed else self._tail.read_lines(WAIT_S)
            self._store(lines)
        return bool(lines)

    def _store(self, lines: list[bytes]) -> None:
        """Lines → spool, up to the first that is no prompt."""
        try:
            for line in lines:
                prompt = self._parse(line)
                whole = line if line.endswith(b"\n") else line + b"\n"
                self._write(whole)
                self._index(prompt, len(whole))
        except PromptError as error:
            remedy = f"{error.remedy}. The prompts before it are kept: run the same command again to continue"
            self._error = PromptError(error.file, error.problem, remedy, row=error.row, id=error.id, flaw=error.flaw)

    def _parse(self, line: bytes) -> Prompt | None:
        """The prompt of the next line; None: a blank line. Raises PromptError for no prompt, or a repeated id."""
        if line.isspace():
            return None
        prompt = self._read_line(self._number + 1, line)
        if len(self._reader.notices) > self._noticed:
            for notice in self._reader.notices.lines(self.path)[self._noticed :]:
                logger.warning(notice)
            self._noticed = len(self._reader.notices)
        if not self._ids.add(id_key(prompt.id)):
            first = next((p.line for p in map(self._read, range(len(self))) if p.id == prompt.id), None)
            raise duplicate_id(self.path, prompt, first)
        return prompt

    def _index(self, prompt: Prompt | None, size: int) -> None:
        """Note the place of a line that is in the spool."""
        self._number += 1
        if prompt:
            self._offsets.append(self._end)
            self._numbers.append(self._number)
        self._end += size

    def _write(self, line: bytes) -> None:
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(self._file, line[written:], self._end + written)
        except OSError as error:
            raise self._unwritable(error) from None

    def _sync(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> PromptError:
        remedy = "Fix the folder or its permissions, or free some space"
        return PromptError(self.spool, f"cannot be written: {error.strerror}", remedy, flaw="file")

    def _read(self, row: int) -> Prompt:
        start = self._offsets[row]
        stop = self._offsets[row + 1] if row + 1 < len(self) else self._end
        line = os.pread(self._file, stop - start, start)
        return self._read_line(self._numbers[row], line[: line.index(b"\n") + 1])

    def _read_line(self, number: int, line: bytes) -> Prompt:
        """The prompt of a line. How many of them are flawed is compared with what is tolerated at the end."""
        try:
            return self._reader.read_line(number, line)
        except PromptError as flaw:
            if not self._tolerates or not flaw.is_of_one_row:
                raise
            return flawed_prompt(flaw)

    def _recover(self) -> None:
        """Check that the stream begins with the spooled lines; half a line that a crash left is cut off."""
        with open(self.spool, "rb") as spooled:
            unread: list[bytes] = []
            while line := spooled.readline():
                if not line.endswith(b"\n"):
                    os.ftruncate(self._file, self._end)
                    break
                self._expect(line, unread)
                self._index(self._parse(line), len(line))
        self._store(unread)

    def _expect(self, line: bytes, unread: list[bytes]) -> None:
        """Check that the stream goes on with this line of the spool; `unread`: its lines that were not compared yet."""
        while not unread and not self._tail.ended:
            unread += self._tail.read_lines(WAIT_S)
        if unread and unread[0].removesuffix(b"\n") == line.removesuffix(b"\n"):
            del unread[0]
            return
        number = self._number + 1
        problem = "is not the line that an earlier run read" if unread else "is missing: an earlier run read more lines"
        raise PromptError(
            self.path, problem, "Give the same prompts from the beginning; or generate only for the earlier ones, with "
            f"--prompts {self.spool}; or start again with --restart", row=number,
        )  # fmt: skip
