"""The parent's side of vLLM: starts worker.py as a child process and speaks JSON lines with it.

In: a job's `EngineSpec`, model folder and sampling. Out: an `Engine`. Frees the accelerator's memory by ending the
child; a child that dies is an `EngineError` and never the end of this process. Knows nothing of orders or trials.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from orderproof.tasks.engines import Completion, EngineError, EngineInfo, Failure, Figures, Output, Request, Steps
from orderproof.tasks.jobs import EngineSpec

QUEUED_BATCHES = 2  # batches in flight: as many steps and the same outputs as with an endless queue (tried)
SILENCE_LIMIT_S = 600.0  # a worker that steps says so every few seconds
# The worker's source travels as the first line of standard input, so that it needs no file where the child runs
# (a container, another host).
BOOTSTRAP = "import sys,json;exec(compile(json.loads(sys.stdin.buffer.readline()),'worker.py','exec'))"
WORKER = Path(__file__).with_name("worker.py")
QUIET = {
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TOKENIZERS_PARALLELISM": "false",
}


class VllmEngine:
    """A vLLM engine in a child process."""

    def __init__(
        self,
        spec: EngineSpec,
        model: Path,
        sampling: Mapping[str, Any],
        log: Path,
        adapters: Mapping[str, Path] | None = None,
        *,
        replica: int = 0,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Nothing starts yet.

        Args:
            log: receives all that vLLM prints.
            adapters: folders of LoRA adapters, by the names that requests have for them.
            replica: which one of `spec.replicas` this is, from 0: it keeps to its part of the devices.
            meanwhile: called while the engine loads; what it raises ends the engine at once.

        Raises:
            EngineError: the model's folder is missing (vLLM would look for a repository of that name for 20 s).
        """
        if not (model / "config.json").is_file():
            raise EngineError(
                f"{model} is not a model's folder: it has no config.json. "
                f"Make or download the model there, or correct `model` in params.yaml"
            )
        self.spec, self.model, self.sampling, self.log = spec, model, dict(sampling), log
        self.replica, self.meanwhile = replica, meanwhile
        self.adapters = {name: str(folder) for name, folder in (adapters or {}).items()}
        self._info: EngineInfo | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue(4096)

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineError("the engine was not started")
        return self._info

    @property
    def pid(self) -> int:
        """The child's process id, which is also its process group's."""
        assert self._child is not None
        return self._child.pid

    def __enter__(self) -> Self:
        self._start()
        try:
            self._send(self._load_command())
            if self.meanwhile:
                self.meanwhile()
            event = self._next(self.spec.start_timeout_s)
            self._info = EngineInfo(event["load_s"], event["versions"], event["machine"], event["settings"])
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child and everything that it started; one that is starting now ends as soon as it is there."""
        self._closed = True
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            child.stdin and child.stdin.close()
        child.wait()

    def probe(self, mib: int) -> float:
        self._send({"op": "probe", "mib": mib})
        return float(self._next(SILENCE_LIMIT_S)["seconds"])

    def run(
        self,
        requests: Iterable[Request],
        sampling: Mapping[str, Any],
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None = None,
    ) -> Figures:
        limit = QUEUED_BATCHES * self.spec.max_num_seqs
        self._send({"op": "pass", "sampling": dict(sampling), "queue": limit, **self._pass_fields()})
        faults: list[BaseException] = []
        feeder = threading.Thread(target=self._feed, args=(requests, faults), daemon=True)
        feeder.start()
        steps: list[Steps] = []
        tell = watch or steps.append
        try:
            while (event := self._next(SILENCE_LIMIT_S))["event"] != "pass_done":
                if event["event"] == "steps":
                    tell(_steps(event))
                elif event["event"] == "routes":
                    self._hear(event)
                elif event["event"] != "idle":  # of a pass whose requests are not there yet
                    sink(_output(event) if event["event"] == "output" else Failure(event["n"], event["error"]))
        except BaseException:
            self.close()  # nobody listens to this pass any more, and its answers must not be taken for the next one's
            raise
        feeder.join()
        if faults:
            raise faults[0]  # after the requests before it were answered: the engine is ready for another pass
        return _figures(event, steps)

    def _load_command(self) -> dict[str, Any]:
        args = {"model": str(self.model), **self.spec.args, "trust_remote_code": False}
        load = {"op": "load", "args": args, "sampling": self.sampling, "env": self._environment()}
        return {**load, "adapters": self.adapters, "share": self._share()}

    def _pass_fields(self) -> dict[str, Any]:
        """What engines/routing.py asks of a pass beside this."""
        return {}

    def _hear(self, event: Mapping[str, Any]) -> None:
        """Routes: engines/routing.py takes them; nobody else asks for any."""

    def _start(self) -> None:
        log = self._open_log()
        started: queue.Queue[subprocess.Popen[bytes] | OSError | ValueError] = queue.Queue()
        # The kernel's "parent died" signal follows the thread that started the child, so that thread must live as long
        # as the child does: the caller's may be a pool's.
        threading.Thread(target=self._keep, args=(started, log), daemon=True).start()
        child = started.get()
        if isinstance(child, OSError | ValueError):
            why = getattr(child, "strerror", None) or child
            raise EngineError(f"engine.command {self._command[0]!r} does not start: {why}")
        self._child = child
        if self._closed:  # by another thread, which saw no child yet
            self.close()
            raise EngineError("the engine is closed")
        threading.Thread(target=self._listen, args=(child,), daemon=True).start()
        self._write(json.dumps(WORKER.read_text("utf-8")))

    @property
    def _command(self) -> tuple[str, ...]:
        return self.spec.command or (sys.executable,)

    def _open_log(self) -> IO[bytes]:
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            return open(self.log, "ab")
        except OSError as error:
            raise EngineError(f"{self.log} cannot be written: {error.strerror}. The engine's log goes there") from None

    def _keep(self, started: queue.Queue[subprocess.Popen[bytes] | OSError | ValueError], log: IO[bytes]) -> None:
        command = [*self._command, "-u", "-c", BOOTSTRAP]
        environment = {**os.environ, **self._environment()}
        pipe = subprocess.PIPE
        try:
            with log:
                child = subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, stderr=log, env=environment, start_new_session=True
                )
        except (OSError, ValueError) as error:  # ValueError: a NUL in a word or in the environment
            started.put(error)
            return
        started.put(child)
        child.wait()

    def _environment(self) -> dict[str, str]:
        """What the engine's process needs beside what it inherits."""
        one_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if self.spec.in_process else {}
        return {**QUIET, **one_process, **self.spec.environment}

    def _share(self) -> dict[str, Any] | None:
        """Which part of the devices the worker keeps to; None: all that it may use."""
        spec = self.spec
        if spec.replicas == 1 and spec.devices is None:
            return None
        named = spec.devices[self.replica] if spec.devices else None
        return {"replica": self.replica, "replicas": spec.replicas, "ranks": spec.ranks, "devices": named,
                "own": list(spec.env)}  # fmt: skip

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        """Events → queue; what is none (the banner of an image or a scheduler) → the log; the end → None."""
        assert child.stdout is not None
        try:
            for line in child.stdout:
                if event := _event(line):
                    self._events.put(event)
                else:
                    with contextlib.suppress(OSError), open(self.log, "ab") as log:
                        log.write(line)
        finally:
            self._events.put(None)

    def _send(self, command: dict[str, Any]) -> None:
        self._write(json.dumps(command))

    def _write(self, line: str) -> None:
        child = self._child
        if child is None or child.stdin is None:
            raise EngineError("the engine is closed")
        with contextlib.suppress(BrokenPipeError):  # the reading side tells why the child went
            child.stdin.write(line.encode() + b"\n")
            child.stdin.flush()

    def _feed(self, requests: Iterable[Request], faults: list[BaseException]) -> None:
        """Write requests as fast as the pipe takes them, which is as fast as the worker reads."""
        try:
            for request in requests:
                line = {"op": "request", "n": request.number, "ids": list(request.token_ids)}
                if request.sampling:
                    line["sampling"] = dict(request.sampling)
                if request.lora:
                    line["lora"] = request.lora
                self._send(line)
        except BaseException as fault:  # handed to the thread that called run()
            faults.append(fault)
        finally:
            with contextlib.suppress(EngineError, ValueError):
                self._send({"op": "end"})

    def _next(self, limit_s: float) -> dict[str, Any]:
        """The child's next event. Raises EngineError when it died, failed or fell silent."""
        try:
            event = self._events.get(timeout=limit_s)
        except queue.Empty:
            self.close()
            raise EngineError(
                f"the engine gave no sign of life for {limit_s:.0f} s and was ended; its log is {self.log}"
            ) from None
        if event is None:
            raise EngineError(self._obituary())
        if event["event"] in ("load_failed", "died"):
            raise EngineError(
                f"vLLM {'could not load the model' if event['event'] == 'load_failed' else 'failed'}: "
                f"{event['error']} (its log: {self.log})"
            )
        return event

    def _obituary(self) -> str:
        child = self._child
        code = child.wait() if child else None
        how = (
            "ended"
            if code is None
            else f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with code {code}"
        )
        memory = "; SIGKILL often means that memory ran out" if code == -signal.SIGKILL else ""
        return f"the engine's process {how}{memory}{_last_words(self.log)} (its log: {self.log})"


def _last_words(log: Path) -> str:
    """The last line of a log that says something."""
    with contextlib.suppress(OSError):
        lines = [
            line.strip() for line in log.read_bytes()[-20_000:].decode("utf-8", "replace").split("\n") if line.strip()
        ]
        if lines:
            return f"; it last said: {lines[-1][:300]}"
    return ""


def _event(line: bytes) -> dict[str, Any] | None:
    """What the worker says; None for a line of somebody else's, which may be JSON too."""
    with contextlib.suppress(ValueError, RecursionError):
        said = json.loads(line)
        if isinstance(said, dict) and "event" in said:
            return said
    return None


def _output(event: Mapping[str, Any]) -> Output:
    completions = tuple(Completion(**completion) for completion in event["completions"])
    return Output(event["n"], completions, event["cached"], event["scheduled"], event["at_s"])


def _steps(event: Mapping[str, Any]) -> Steps:
    return Steps(
        np.asarray(event["ms"], np.float32),
        np.asarray(event["running"], np.int32),
        np.asarray(event["waiting"], np.int32),
    )


def _figures(event: Mapping[str, Any], lots: list[Steps]) -> Figures:
    return Figures(
        wall_s=event["wall_s"],
        step_ms=np.concatenate([np.empty(0, np.float32), *(steps.ms for steps in lots)]),
        running=np.concatenate([np.empty(0, np.int32), *(steps.running for steps in lots)]),
        waiting=np.concatenate([np.empty(0, np.int32), *(steps.waiting for steps in lots)]),
        preempted=event["preempted"],
        prefix_queries=event["prefix_queries"],
        prefix_hits=event["prefix_hits"],
        steal=event["steal"],
        accelerator=event["accelerator"],
    )
