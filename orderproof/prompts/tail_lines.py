"""Lines of a pipe or of a file that grows, as soon as they are there."""

from __future__ import annotations

import functools
import os
import select
import stat
import sys
import time
from pathlib import Path

from orderproof.prompts.json_lines import BYTE_ORDER_MARK, LINE_LIMIT_BYTES, too_long
from orderproof.prompts.prompt import PromptError

STANDARD_STREAM = "-"
PIECE_BYTES = 1 << 16
POLL_S = 0.1  # between two looks at a file that did not grow


class LineTail:
    """Whole lines with their newlines, which only the last may lack; byte order marks before them are left out.

    Not thread-safe.
    """

    def __init__(self, source: str, follow_s: float | None = None) -> None:
        """Open the source; opening a named pipe waits for a writer.

        Args:
            source: a path, or `-` for the standard input.
            follow_s: seconds without growth after which a file has ended; None: it has ended where it ends now.

        Raises:
            PromptError: the source cannot be read, or is a pipe and `follow_s` was given.
        """
        self.path = Path("standard input") if source == STANDARD_STREAM else Path(source)
        self.ended = False
        if source == STANDARD_STREAM and sys.stdin is None:  # descriptor 0 may be another file now
            raise PromptError(self.path, "is closed", "Give a pipe or a file", flaw="file")
        try:
            # A duplicate, read without Python's buffer: the buffer is locked while a thread waits in it, and a locked
            # buffer is fatal when the process ends.
            self._file = os.dup(0) if source == STANDARD_STREAM else os.open(source, os.O_RDONLY)
            self._is_file = stat.S_ISREG(os.fstat(self._file).st_mode)
        except OSError as error:
            raise self._unreadable(error) from None
        if follow_s is not None and not self._is_file:
            raise PromptError(self.path, "is a pipe, which ends when its writer closes it", "Leave --follow out")
        self._follow_s = follow_s
        self._rest = b""
        self._size, self._grew_at = 0, time.monotonic()  # bytes of the file at the last look, and when it grew

    def close(self) -> None:
        os.close(self._file)

    def read_lines(self, wait_s: float) -> list[bytes]:
        """The lines that are there now. Waits for the first; returns none after `wait_s` or at the end.

        Raises:
            PromptError: a line is too long, the file shrank, or it cannot be read.
        """
        until = time.monotonic() + wait_s
        while not self.ended:
            piece = self._read(max(0.0, until - time.monotonic()))
            if piece is None:
                return []
            self.ended = not piece
            lines = _split(self._rest + piece)
            self._rest = b"" if self.ended else lines.pop()
            if len(self._rest) > LINE_LIMIT_BYTES:
                raise too_long(functools.partial(PromptError, self.path, flaw="file"))
            if lines := [line for line in (line.removeprefix(BYTE_ORDER_MARK) for line in lines) if line]:
                return lines
        return []

    def _read(self, wait_s: float) -> bytes | None:
        """The next bytes; b"" at the end, None if there were none in time."""
        try:
            if self._is_file:
                return os.read(self._file, PIECE_BYTES) or self._at_end(wait_s)
            ready, _, _ = select.select([self._file], [], [], wait_s)
            return os.read(self._file, PIECE_BYTES) if ready else None
        except OSError as error:
            raise self._unreadable(error) from None

    def _at_end(self, wait_s: float) -> bytes | None:
        """At a file's end: b"" if it has ended, None if it may grow."""
        now, position = time.monotonic(), os.lseek(self._file, 0, os.SEEK_CUR)
        if os.fstat(self._file).st_size < position:
            raise PromptError(self.path, "became shorter while it was read", "Only append to it", flaw="file")
        if self._size != position:
            self._size, self._grew_at = position, now
        if self._follow_s is None or now - self._grew_at >= self._follow_s:
            return b""
        time.sleep(min(POLL_S, wait_s))
        return None

    def _unreadable(self, error: OSError) -> PromptError:
        return PromptError(self.path, f"cannot be read: {error.strerror}", "Check the path", flaw="file")


def _split(data: bytes) -> list[bytes]:
    """Lines with their newlines; the last item is what follows the last newline, perhaps nothing."""
    *whole, rest = data.split(b"\n")
    return [*(line + b"\n" for line in whole), rest]
