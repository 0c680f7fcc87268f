"""A child process that speaks JSON lines: started, written to, read from, ended with every process that it started.

A child that dies or stops sending is an `EngineError` that says how.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from orderproof.engines.protocol import EngineError

EVENTS_AHEAD = 4096  # received and not yet read; after that the child waits
ENDING_S = 10.0  # from the end of a child's output to its exit
LOG_TAIL_BYTES = 20_000
LOG_LINE_CHARACTERS = 300

Event = dict[str, Any]  # a JSON object; worker.py documents the fields


class Child:
    """One process; it is started once."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Nothing starts yet.

        Args:
            environment: in addition to what it inherits.
            log: everything that it prints except events is appended here.
        """
        self.command, self.environment, self.log = command, environment, log
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._log_start = 0  # of this child's part of the log, in bytes
        self._events: queue.Queue[Event | None] = queue.Queue(EVENTS_AHEAD)

    @property
    def pid(self) -> int:
        """Its process id, which is also its process group's."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Raises EngineError where command or log cannot be used, or it was closed meanwhile."""
        log = self._open_log()
        started: queue.Queue[subprocess.Popen[bytes] | OSError | ValueError] = queue.Queue()
        # The kernel sends its "parent died" signal when the thread that started the child ends, so that thread must
        # live as long as the child; the caller's thread may belong to a pool.
        threading.Thread(target=self._run, args=(started, log), daemon=True).start()
        process = started.get()
        if isinstance(process, OSError | ValueError):
            reason = getattr(process, "strerror", None) or process
            raise EngineError(f"engine.command {self.command[0]!r} does not start: {reason}")
        self._process = process
        if self._closed:  # by another thread, before there was a process
            self.close()
            raise EngineError("the engine is closed")
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def send(self, line: object) -> None:
        """Write one line of JSON. Raises EngineError where the child was closed; `next` raises where it died."""
        process = self._process
        if self._closed or process is None or process.stdin is None:
            raise EngineError("the engine is closed")
        content = json.dumps(line).encode() + b"\n"
        try:
            process.stdin.write(content)
            process.stdin.flush()
        except BrokenPipeError:
            pass
        except ValueError:  # another thread has just closed it
            raise EngineError("the engine is closed") from None

    def next(self, limit_s: float) -> Event:
        """The next event. Raises EngineError where the child died or was closed, or after silence, which ends it."""
        if self._closed and self._events.empty():
            raise EngineError(self._exit_message())
        try:
            event = self._events.get(timeout=limit_s)
        except queue.Empty:
            self.close()
            raise EngineError(
                f"the engine sent no heartbeat for {limit_s:.0f} s and was ended. Its log: {self.log}"
            ) from None
        if event is None:
            raise EngineError(self._exit_message())
        return event

    def close(self) -> None:
        """End the child and everything that it started; a child that is starting ends as soon as it has started."""
        self._closed = True
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            process.stdin and process.stdin.close()
        process.wait()

    def _open_log(self) -> IO[bytes]:
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            log = open(self.log, "ab")  # noqa: SIM115  (closed once the process has it)
        except OSError as error:
            raise EngineError(f"the engine's log {self.log} cannot be written: {error.strerror}") from None
        self._log_start = log.tell()
        return log

    def _run(self, started: queue.Queue[subprocess.Popen[bytes] | OSError | ValueError], log: IO[bytes]) -> None:
        pipe, environment = subprocess.PIPE, {**os.environ, **self.environment}
        try:
            with log:
                process = subprocess.Popen(
                    self.command, stdin=pipe, stdout=pipe, stderr=log, env=environment, start_new_session=True
                )
        except (OSError, ValueError) as error:  # ValueError: a NUL in a word or in the environment
            started.put(error)
            return
        started.put(process)
        process.wait()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Events → queue; other lines (the banner of an image or a scheduler) → log; the end → None."""
        assert process.stdout is not None
        with process.stdout as lines:
            try:
                for line in lines:
                    event = _event(line)
                    if event is None:
                        self._write_log(line)
                    elif not self._put(event):
                        break
            finally:
                self._put(None)

    def _write_log(self, line: bytes) -> None:
        with contextlib.suppress(OSError), open(self.log, "ab") as log:
            log.write(line)

    def _put(self, event: Event | None) -> bool:
        """Wait for room in the queue; False: the child was closed."""
        while True:
            with contextlib.suppress(queue.Full):
                self._events.put(event, timeout=1.0)
                return True
            if self._closed:
                return False

    def _exit_message(self) -> str:
        how, memory = "ended", ""
        if process := self._process:
            try:
                code = process.wait(ENDING_S)
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
                memory = "; SIGKILL often means that memory ran out" if code == -signal.SIGKILL else ""
            except subprocess.TimeoutExpired:
                how = "closed its output and did not end"
        line = self.last_log_line()
        return f"the engine's process {how}{memory}{f'; last line: {line}' if line else ''} (its log: {self.log})"

    def last_log_line(self, about: re.Pattern[str] | None = None) -> str:
        """The last line with text that the child wrote into the log, shortened; empty: there is none.

        Args:
            about: what the line must hold.
        """
        with contextlib.suppress(OSError), open(self.log, "rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            for line in reversed(log.read().decode("utf-8", "replace").split("\n")):
                if line.strip() and (about is None or about.search(line)):
                    return line.strip()[:LOG_LINE_CHARACTERS]
        return ""


def _event(line: bytes) -> Event | None:
    """The event on a line; None for other output, which may be JSON too."""
    with contextlib.suppress(ValueError, RecursionError):
        event = json.loads(line)
        if isinstance(event, dict) and "event" in event:
            return event
    return None
