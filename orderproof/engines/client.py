"""The parent's side of vLLM: runs worker.py in a child process and speaks its protocol, which worker.py documents.

Ending the child frees the accelerator's memory.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from orderproof.engines.child import Child, Event
from orderproof.engines.protocol import (
    Completion,
    EngineError,
    EngineInfo,
    Failure,
    Output,
    PassStats,
    Request,
    Sampling,
    Steps,
)
from orderproof.job.spec import EngineSpec

QUEUED_BATCHES = 2  # batches in flight: measured to give the same steps and outputs as an unlimited queue
SILENCE_LIMIT_S = 600.0  # a working child sends a heartbeat every few seconds
# The worker's source travels as the first line of standard input, so that it needs no file where the child runs
# (a container, another host).
BOOTSTRAP = "import sys,json;exec(compile(json.loads(sys.stdin.buffer.readline()),'worker.py','exec'))"
WORKER = Path(__file__).with_name("worker.py")
QUIET_ENVIRONMENT = {
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
        sampling: Sampling,
        log: Path,
        adapters: Mapping[str, Path] | None = None,
        *,
        replica: int = 0,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Nothing starts yet.

        Args:
            log: everything that vLLM prints is appended here.
            adapters: folders of LoRA adapters, by the names that requests use.
            replica: which of `spec.replicas` this is, from 0; it uses only its part of the devices.
            meanwhile: called while the engine loads; what it raises ends the engine at once.

        Raises:
            EngineError: the model's folder is missing (vLLM would look for a repository of that name for 20 s).
        """
        if not (model / "config.json").is_file():
            raise EngineError(
                f"{model} is not a model folder: it has no config.json. "
                f"Put a model there, or correct `model` in params.yaml"
            )
        self.spec, self.model, self.sampling = spec, model, dict(sampling)
        self.replica, self.meanwhile = replica, meanwhile
        self.adapters = {name: str(folder) for name, folder in (adapters or {}).items()}
        self._info: EngineInfo | None = None
        command = [*(spec.command or (sys.executable,)), "-u", "-c", BOOTSTRAP]
        self._child = Child(command, self._environment(), log)

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineError("the engine was not started")
        return self._info

    @property
    def pid(self) -> int:
        """The child's process id, which is also its process group's."""
        return self._child.pid

    def __enter__(self) -> Self:
        self._child.start()
        try:
            self._child.send(WORKER.read_text("utf-8"))
            self._child.send(self._load_command())
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
        self._child.close()

    def probe(self, mib: int) -> float:
        self._child.send({"op": "probe", "mib": mib})
        return float(self._next(SILENCE_LIMIT_S)["seconds"])

    def run(
        self,
        requests: Iterable[Request],
        sampling: Sampling,
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None = None,
    ) -> PassStats:
        limit = QUEUED_BATCHES * self.spec.max_num_seqs
        self._child.send({"op": "pass", "sampling": dict(sampling), "queue": limit, **self._pass_fields()})
        faults: list[BaseException] = []
        feeder = threading.Thread(target=self._feed, args=(requests, faults), daemon=True)
        feeder.start()
        steps: list[Steps] = []
        report = watch or steps.append
        try:
            while (event := self._next(SILENCE_LIMIT_S))["event"] != "pass_done":
                if event["event"] == "steps":
                    report(_steps(event))
                elif event["event"] == "routes":
                    self._receive_routes(event)
                elif event["event"] != "idle":  # the pass waits for its requests
                    sink(self._output(event) if event["event"] == "output" else Failure(event["n"], event["error"]))
        except BaseException:
            self.close()  # or the answers of this pass would be read as those of the next one
            raise
        feeder.join()
        if faults:
            raise faults[0]  # all requests before it were answered: the engine is ready for another pass
        return _stats(event, steps)

    def _output(self, event: Mapping[str, Any]) -> Output:
        completions, log = tuple(Completion(**completion) for completion in event["completions"]), ""
        if any(completion.finish_reason == "error" for completion in completions):
            # vLLM may add to a request's number: 12 → 12-8f3a
            log = self._child.last_log_line(re.compile(rf"\brequest {event['n']}(-\w+)?\b"))
        return Output(event["n"], completions, event["cached"], event["scheduled"], event["at_s"], log)

    def _load_command(self) -> dict[str, Any]:
        args = {"model": str(self.model), **self.spec.args, "trust_remote_code": False}
        load = {"op": "load", "args": args, "sampling": self.sampling, "env": self._environment()}
        return {**load, "adapters": self.adapters, "share": self._share()}

    def _pass_fields(self) -> dict[str, Any]:
        """Further fields of the command: the RoutingEngine's."""
        return {}

    def _receive_routes(self, event: Mapping[str, Any]) -> None:
        """Only a RoutingEngine asks for routes."""

    def _environment(self) -> dict[str, str]:
        """Variables of the child, in addition to those that it inherits."""
        one_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if self.spec.in_process else {}
        return {**QUIET_ENVIRONMENT, **one_process, **self.spec.environment}

    def _share(self) -> dict[str, Any] | None:
        """The part of the devices that the worker may use; None: all of them."""
        spec = self.spec
        if spec.replicas == 1 and spec.devices is None:
            return None
        devices = spec.devices[self.replica] if spec.devices else None
        return {"replica": self.replica, "replicas": spec.replicas, "ranks": spec.ranks, "devices": devices,
                "own": list(spec.env)}  # fmt: skip

    def _feed(self, requests: Iterable[Request], faults: list[BaseException]) -> None:
        """Write requests as fast as the worker reads them."""
        try:
            for request in requests:
                line = {"op": "request", "n": request.number, "ids": list(request.token_ids)}
                if request.sampling:
                    line["sampling"] = dict(request.sampling)
                if request.lora:
                    line["lora"] = request.lora
                if request.cache_salt:
                    line["salt"] = request.cache_salt
                self._child.send(line)
        except BaseException as fault:  # run() raises it in its own thread
            faults.append(fault)
        finally:
            with contextlib.suppress(EngineError):
                self._child.send({"op": "end"})

    def _next(self, limit_s: float) -> Event:
        """The child's next event. Raises EngineError where it died, failed or sent no heartbeat."""
        event = self._child.next(limit_s)
        if event["event"] in ("load_failed", "died"):
            raise EngineError(
                f"vLLM {'could not load the model' if event['event'] == 'load_failed' else 'failed'}: "
                f"{event['error']} (its log: {self._child.log})"
            )
        return event


def _steps(event: Mapping[str, Any]) -> Steps:
    return Steps(
        np.asarray(event["ms"], np.float32),
        np.asarray(event["running"], np.int32),
        np.asarray(event["waiting"], np.int32),
    )


def _stats(event: Mapping[str, Any], chunks: list[Steps]) -> PassStats:
    return PassStats(
        wall_s=event["wall_s"],
        step_ms=np.concatenate([np.empty(0, np.float32), *(steps.ms for steps in chunks)]),
        running=np.concatenate([np.empty(0, np.int32), *(steps.running for steps in chunks)]),
        waiting=np.concatenate([np.empty(0, np.int32), *(steps.waiting for steps in chunks)]),
        preempted=event["preempted"],
        prefix_queries=event["prefix_queries"],
        prefix_hits=event["prefix_hits"],
        steal=event["steal"],
        accelerator=event["accelerator"],
    )
