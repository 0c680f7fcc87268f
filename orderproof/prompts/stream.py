"""Prompts that come one after the other, each on disk before it is handed on.

In: a pipe or growing file of JSON lines. Out: a `PromptStream`: the prompts so far, any of them at hand, and windows of
them as they are complete; or a `PromptError`. Knows nothing of orders, engines or outputs.

What came lies in the spool, line by line as it was, so that a job that was killed goes on: then the stream has to begin
with the same lines again, and is refused where it does not. Of a prompt 24 bytes stay in memory.
"""

from __future__ import annotations

import array
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from orderproof.prompts.ids import IdSet, id_key
from orderproof.prompts.prompt import Prompt, PromptError, duplicate_id
from orderproof.prompts.prompt_file import FormatCheck, prompt_of_line
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.tail_lines import LineTail

LINGER_S = 5.0
WAIT_S = 0.1  # for the next line, before it is asked again whether the engine starves

Starving = Callable[[], bool]


@dataclass(frozen=True)
class Stream:
    """Where prompts come from, and how long they are waited for."""

    source: str  # `-` for the standard input, or a path
    follow_s: float | None = None  # of a growing file: it ends when nothing was added for so long; None: where it ends
    linger_s: float = LINGER_S  # a window that is not complete waits so long for more while the engine starves


class PromptStream:
    """The prompts so far, in the order in which they came. A context manager."""

    def __init__(self, stream: Stream, spool: Path, defaults: RequestDefaults | None = None) -> None:
        """Open the stream, and where the spool holds lines of an earlier run, see that it begins with them.

        Args:
            defaults: what the job serves, by which rows are resolved; None: outside of a job.

        Raises:
            PromptError: it cannot be read, or does not begin with what came before.
        """
        if stream.source.lower().endswith(".parquet"):
            raise PromptError(
                Path(stream.source), "is Parquet, which cannot be read as it comes", "Give JSON lines", flaw="file"
            )
        self.spool, self._linger_s, self._serving = spool, stream.linger_s, defaults
        self._lines = LineTail(stream.source, stream.follow_s)
        self.path = self._lines.path
        self._form = FormatCheck(self.path)
        self._offsets, self._numbers = array.array("q"), array.array("q")
        self._seen = IdSet()
        self._fault: PromptError | None = None  # told once the windows before it were given
        self._number = self._end = 0  # lines and bytes in the spool
        self._using, self._closed = threading.RLock(), False
        try:
            self._file = os.open(spool, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            self._lines.close()
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
        """Also while another thread waits for a window: it then gets no more."""
        with self._using:
            if not self._closed:
                self._closed = True
                self._lines.close()
                os.close(self._file)

    def read(self, rows: Sequence[int]) -> list[Prompt]:
        """Some of the prompts so far, by their places in the stream."""
        with self._using:
            return [] if self._closed else [self._read(row) for row in rows]

    def has_more(self, start: int) -> bool:
        """Wait for a prompt after the first `start`. Returns whether there is one.

        Raises:
            PromptError: the next line is none, or there are no prompts at all.
        """
        while len(self) <= start and not self._over:
            self._take()
        if len(self) <= start and self._fault:
            raise self._fault
        if not len(self):
            raise PromptError(self.path, "holds no prompts", 'Give at least one, such as {"id": "a", "text": "…"}',
                              flaw="file")  # fmt: skip
        return len(self) > start

    def windows(self, start: int, size: int, starving: Starving) -> Iterator[range]:
        """Places of `size` neighbours each, from `start` on, each window as soon as it is complete and on disk.

        A window is shorter at the stream's end, and where the engine is `starving` and nothing came for `linger_s`.

        Raises:
            PromptError: a line is no prompt, or an id came before; the windows before it were given.
        """
        while True:
            self._wait_for(start, size, starving)
            stop = min(len(self), start + size)
            if stop < start + size and self._fault:
                raise self._fault
            if stop == start or self._closed:
                return
            self._sync()
            yield range(start, stop)
            start = stop

    @property
    def _over(self) -> bool:
        return self._lines.ended or self._closed or self._fault is not None

    def _wait_for(self, start: int, size: int, starving: Starving) -> None:
        came = time.monotonic()
        while len(self) < start + size and not self._over:
            if self._take():
                came = time.monotonic()
            elif len(self) > start and time.monotonic() - came >= self._linger_s and starving():
                return

    def _take(self) -> bool:
        """Keep what came; whether anything did."""
        with self._using:
            lines = [] if self._closed else self._lines.take(WAIT_S)
            self._keep(lines)
        return bool(lines)

    def _keep(self, lines: list[bytes]) -> None:
        """Lines → spool, up to the first that is no prompt."""
        try:
            for line in lines:
                prompt = self._checked(line)
                whole = line if line.endswith(b"\n") else line + b"\n"
                self._write(whole)
                self._note(prompt, len(whole))
        except PromptError as fault:
            remedy = f"{fault.remedy}. What came before it is kept: then run the same command again to go on"
            self._fault = PromptError(fault.file, fault.problem, remedy, row=fault.row, id=fault.id, flaw=fault.flaw)

    def _checked(self, line: bytes) -> Prompt | None:
        """The prompt of the next line; None: it is blank. Raises PromptError for one that is none, or came before."""
        if line.isspace():
            return None
        prompt = self._form(prompt_of_line(self.path, self._number + 1, line, self._serving))
        if not self._seen.add(id_key(prompt.id)):
            first = next((p.line for p in map(self._read, range(len(self))) if p.id == prompt.id), None)
            raise duplicate_id(self.path, prompt, first)
        return prompt

    def _note(self, prompt: Prompt | None, size: int) -> None:
        """A line lies in the spool."""
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
        return PromptError(self.spool, f"cannot be written: {error.strerror}", "Mend that", flaw="file")

    def _read(self, row: int) -> Prompt:
        start = self._offsets[row]
        stop = self._offsets[row + 1] if row + 1 < len(self) else self._end
        line = os.pread(self._file, stop - start, start)
        return prompt_of_line(self.path, self._numbers[row], line[: line.index(b"\n") + 1], self._serving)

    def _recover(self) -> None:
        """Compare what came before with what comes now; half a line that a crash left is cut."""
        with open(self.spool, "rb") as spooled:
            expected: list[bytes] = []
            while line := spooled.readline():
                if not line.endswith(b"\n"):
                    os.ftruncate(self._file, self._end)
                    break
                self._expect(line, expected)
                self._note(self._checked(line), len(line))
        self._keep(expected)

    def _expect(self, line: bytes, came: list[bytes]) -> None:
        """Take the next line of the stream, which has to be this one of the spool; `came` holds those not looked at."""
        while not came and not self._lines.ended:
            came += self._lines.take(WAIT_S)
        if came and came[0].removesuffix(b"\n") == line.removesuffix(b"\n"):
            del came[0]
            return
        number = self._number + 1
        what = "is not the line that an earlier run read there" if came else "is missing: an earlier run read more"
        raise PromptError(
            self.path, what, "Give the same prompts from the beginning again; or generate only for those that came, "
            f"with --prompts {self.spool}; or begin anew with --restart", row=number,
        )  # fmt: skip
