"""Lines as they arrive, from a pipe or from a file that grows.

In: `-` for the standard input, or a path. Out: whole lines, as many as there are, within a time; or a `PromptError`.
Knows nothing of what the lines hold.
"""

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
LOOK_AGAIN_S = 0.1  # at a file that did not grow


class LineTail:
    """Whole lines with their ends, without a byte order mark; only the last one may lack its end. Of one thread."""

    def __init__(self, source: str, follow_s: float | None = None) -> None:
        """Open it; that of a named pipe waits for a writer.

        Args:
            follow_s: of a file: it ends when nothing was added for so many seconds. None: it ends where it ends.

        Raises:
            PromptError: it cannot be read, or is nothing that could be followed.
        """
        self.path = Path("standard input") if source == STANDARD_STREAM else Path(source)
        self.ended = False
        if source == STANDARD_STREAM and sys.stdin is None:  # its number may be some other file's by now
            raise PromptError(self.path, "is closed", "Give a pipe or a file", flaw="file")
        try:
            # A copy of the number, read without Python's buffer: that one is locked while a thread waits in it, and a
            # locked buffer is fatal when the process ends.
            self._file = os.dup(0) if source == STANDARD_STREAM else os.open(source, os.O_RDONLY)
            self._is_file = stat.S_ISREG(os.fstat(self._file).st_mode)
        except OSError as error:
            raise self._unreadable(error) from None
        if follow_s is not None and not self._is_file:
            raise PromptError(self.path, "is a pipe, which ends when its writer closes it", "Leave --follow out")
        self._follow_s = follow_s
        self._began, self._rest = False, b""
        self._seen, self._grew = 0, time.monotonic()  # bytes at the file's end, and since when

    def close(self) -> None:
        os.close(self._file)

    def take(self, wait_s: float) -> list[bytes]:
        """The lines that are there, waiting for the first; none if it did not come in time, or at the end.

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
            if any(lines) and not self._began:
                self._began, lines[0] = True, lines[0].removeprefix(BYTE_ORDER_MARK)
            if lines := [line for line in lines if line]:
                return lines
        return []

    def _read(self, wait_s: float) -> bytes | None:
        """What came; b"" at the end, None if nothing did in time."""
        try:
            if self._is_file:
                return os.read(self._file, PIECE_BYTES) or self._at_end(wait_s)
            ready, _, _ = select.select([self._file], [], [], wait_s)
            return os.read(self._file, PIECE_BYTES) if ready else None
        except OSError as error:
            raise self._unreadable(error) from None

    def _at_end(self, wait_s: float) -> bytes | None:
        """Of a file: whether it is over, or may grow."""
        now, here = time.monotonic(), os.lseek(self._file, 0, os.SEEK_CUR)
        if os.fstat(self._file).st_size < here:
            raise PromptError(self.path, "became shorter while it was read", "Only add to its end", flaw="file")
        if self._seen != here:
            self._seen, self._grew = here, now
        if self._follow_s is None or now - self._grew >= self._follow_s:
            return b""
        time.sleep(min(LOOK_AGAIN_S, wait_s))
        return None

    def _unreadable(self, error: OSError) -> PromptError:
        return PromptError(self.path, f"cannot be read: {error.strerror}", "Check the path", flaw="file")


def _split(data: bytes) -> list[bytes]:
    """Lines with their ends; the last one is what follows the last end, perhaps nothing."""
    *whole, rest = data.split(b"\n")
    return [*(line + b"\n" for line in whole), rest]
