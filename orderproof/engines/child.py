"""A child process that speaks JSON lines: started, written to, listened to, ended with all that it started.

In: its command, and objects for it to read. Out: the events that it tells, in their order; a child that dies or falls
silent is an `EngineError`, which says how, and never the end of this process. Knows nothing of what is said.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from orderproof.engines.protocol import EngineError

EVENTS_AHEAD = 4096  # told and not looked at; then the child waits
ENDING_S = 10.0  # from the end of a child's events to its own
LAST_WORDS_BYTES = 20_000

Event = dict[str, Any]


class Child:
    """One process, which is started once."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Nothing starts yet.

        Args:
            environment: beside what it inherits.
            log: receives what it prints and what is no event, behind what is there.
        """
        self.command, self.environment, self.log = command, environment, log
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._log_began = 0  # what stands before in the log is another's
        self._events: queue.Queue[Event | None] = queue.Queue(EVENTS_AHEAD)

    @property
    def pid(self) -> int:
        """Its process id, which is also its process group's."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Raises EngineError where command or log are not usable, or the child was closed meanwhile."""
        log = self._open_log()
        started: queue.Queue[subprocess.Popen[bytes] | OSError | ValueError] = queue.Queue()
        # The kernel's "parent died" signal follows the thread that started the child, so that thread must live as long
        # as the child does: the caller's may be a pool's.
        threading.Thread(target=self._keep, args=(started, log), daemon=True).start()
        process = started.get()
        if isinstance(process, OSError | ValueError):
            why = getattr(process, "strerror", None) or process
            raise EngineError(f"engine.command {self.command[0]!r} does not start: {why}")
        self._process = process
        if self._closed:  # by another thread, which saw no child yet
            self.close()
            raise EngineError("the engine is closed")
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def send(self, line: object) -> None:
        """Write one line of JSON. Raises EngineError where it is closed; that it has died, `next` tells."""
        process = self._process
        if self._closed or process is None or process.stdin is None:
            raise EngineError("the engine is closed")
        written = json.dumps(line).encode() + b"\n"
        try:
            process.stdin.write(written)
            process.stdin.flush()
        except BrokenPipeError:
            pass
        except ValueError:  # by another thread, just now
            raise EngineError("the engine is closed") from None

    def next(self, limit_s: float) -> Event:
        """Its next event. Raises EngineError where it died, was closed or told nothing for so long, which ends it."""
        if self._closed and self._events.empty():
            raise EngineError(self._exit_message())
        try:
            event = self._events.get(timeout=limit_s)
        except queue.Empty:
            self.close()
            raise EngineError(
                f"the engine gave no sign of life for {limit_s:.0f} s and was ended; its log is {self.log}"
            ) from None
        if event is None:
            raise EngineError(self._exit_message())
        return event

    def close(self) -> None:
        """End it and everything that it started; one that is starting now ends as soon as it is there."""
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
            raise EngineError(f"{self.log} cannot be written: {error.strerror}. The engine's log goes there") from None
        self._log_began = log.tell()
        return log

    def _keep(self, started: queue.Queue[subprocess.Popen[bytes] | OSError | ValueError], log: IO[bytes]) -> None:
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
        """Events → queue; what is none (the banner of an image or a scheduler) → the log; the end → None."""
        assert process.stdout is not None
        with process.stdout as told:
            try:
                for line in told:
                    event = _event(line)
                    if event is None:
                        self._write_down(line)
                    elif not self._put(event):
                        break
            finally:
                self._put(None)

    def _write_down(self, line: bytes) -> None:
        with contextlib.suppress(OSError), open(self.log, "ab") as log:
            log.write(line)

    def _put(self, event: Event | None) -> bool:
        """Wait for room; False: the child was closed, and nobody may make any."""
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
        return f"the engine's process {how}{memory}{self._last_words()} (its log: {self.log})"

    def _last_words(self) -> str:
        """The last line that says something of what it wrote into the log."""
        with contextlib.suppress(OSError), open(self.log, "rb") as log:
            log.seek(max(self._log_began, log.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").split("\n") if line.strip()]
            if lines:
                return f"; it last said: {lines[-1][:300]}"
        return ""


def _event(line: bytes) -> Event | None:
    """What a line tells; None for a line of somebody else's, which may be JSON too."""
    with contextlib.suppress(ValueError, RecursionError):
        event = json.loads(line)
        if isinstance(event, dict) and "event" in event:
            return event
    return None
