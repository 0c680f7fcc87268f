"""The engine's child process: drives vLLM step by step.

This file imports only the standard library and vLLM, so that it runs in any environment that has vLLM: the parent sends
it as text to the interpreter that `engine.command` names. It keeps the order of the requests.

The protocol: the parent writes commands to standard input, one JSON object a line, and reads events from standard
output, one JSON object a line. Commands, in the order in which they may come, and the events that answer them:

    {"op": "load", "args": {EngineArgs}, "sampling": {SamplingParams}, "adapters": {name: folder}, "env": {...},
     "share": {replica, replicas, ranks, devices, own} or null, "routing": text of worker_routing.py (optional)}
        → loaded: load_s, versions, machine, settings       | load_failed: error, kind
    {"op": "check", "args": {EngineArgs}, "sampling": {...}, "samplings": [{...}, ...], "adapters": {name: folder},
     "env": {...}}
        → refused: where, error                             of each setting that vLLM does not take; where is
                                                            "engine.args", "sampling", an adapter's name as
                                                            "engine.lora_modules.NAME", or a number in `samplings`
        → checked
    {"op": "probe", "mib": 256}
        → probed: seconds
    {"op": "pass", "sampling": {...}, "queue": 32, "routing": {...} (optional, see worker_routing.py)}
    {"op": "request", "n": 0, "ids": [token, ...], "sampling": {...}, "lora": "name", "salt": "text"}    any number
    {"op": "end"}
        → output: n, completions, cached, scheduled, at_s   | failed: n, error       of each request, as it finishes
        → routes: n, and shape, bytes_per_expert, experts, or missing               before its output, if captured
        → steps: ms, running, waiting                       lists, at least every HEARTBEAT_S while steps run
        → idle                                              heartbeat while the pass waits for requests
        → pass_done: wall_s, steal, accelerator, preempted, prefix_queries, prefix_hits
    end of standard input: the process and everything that it started end at once

An error that ends the engine → died: error, kind.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import difflib
import json
import os
import queue
import signal
import sys
import threading
import time
import types
from collections.abc import Sequence
from typing import IO, Any

Line = dict[str, Any]  # one command
Commands = queue.Queue[Line]

STEPS_PER_EVENT = 256
HEARTBEAT_S = 5.0
SILENT_AFTER_S = 2.0  # a parent that has its prompts writes the first batch in far less
GATHERING_S = 20.0  # to collect the first batch of a parent whose prompts come one by one
LOWEST_LOGPROB = -9999.0  # JSON has no −∞; vLLM's server sends this value too
READ_AHEAD_LINES = 64  # requests parsed ahead of the engine; the rest waits in the pipe


# -- the process -------------------------------------------------------------------------------------------------------


def main() -> None:
    out = _take_stdout()
    die_with_parent()
    commands: Commands = queue.Queue(READ_AHEAD_LINES)
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    session = Session(out)
    while True:
        session.handle(commands.get(), commands)


def _take_stdout() -> IO[str]:
    """Reserve standard output for events: whatever vLLM or a library prints goes to standard error."""
    events = os.fdopen(os.dup(1), "w", buffering=1 << 16, encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return events


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent dies (Linux); end at once if it has died already."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        end_group(3)


def end_group(code: int) -> None:
    """End this process and every process that it started; a separate engine core would otherwise keep its memory."""
    if os.getpgrp() == os.getpid():  # only if the parent gave this process its own group
        os.killpg(0, signal.SIGKILL)
    os._exit(code)


def _read_commands(commands: Commands) -> None:
    for line in sys.stdin.buffer:
        commands.put(json.loads(line))
    end_group(3)


# -- loading and passes ------------------------------------------------------------------------------------------------


class Session:
    """One loaded engine and the passes that run on it."""

    def __init__(self, out: IO[str]) -> None:
        self.out = out
        self.engine: Any = None  # vLLM's LLMEngine, once loaded
        self.stats: Any = None  # the scheduler's statistics, likewise
        self.routing: Any = None  # worker_routing.py's Routing, if the parent sent it
        self.verify: _Verifier | None = None  # of requests with structured outputs, once one was sent
        self.adapters: dict[str, Any] = {}  # vLLM's LoRARequest, by name
        self.probe_buffers: list[tuple[object, object, int]] = []

    def emit(self, event: str, **fields: Any) -> None:
        self.out.write(json.dumps({"event": event, **fields}, ensure_ascii=False))
        self.out.write("\n")

    def handle(self, command: Line, commands: Commands) -> None:
        operation = command["op"]
        try:
            if operation == "load":
                os.environ.update(command["env"])  # again here: a container does not inherit them
                self.load(command)
            elif operation == "check":
                os.environ.update(command["env"])
                self.check(command)
            elif operation == "probe":
                self.emit("probed", seconds=self.probe(command["mib"]))
            elif operation == "pass":
                self.run_pass(command, commands)
        except Exception as error:
            self.emit(
                "load_failed" if operation == "load" else "died", error=_error_text(error), kind=type(error).__name__
            )
            self.out.flush()
            import traceback

            traceback.print_exc()
            end_group(1)
        self.out.flush()

    def load(self, command: Line) -> None:
        """Check every name, because loading takes minutes; load; then check what depends on the model."""
        started, args = time.perf_counter(), command["args"]
        devices = pin_devices(**command["share"]) if command.get("share") else None
        sampler = _Sampler(command["sampling"])
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        _check_names("engine.args", args, [field.name for field in dataclasses.fields(EngineArgs)])
        _check_batch_invariance()
        module = _load_module("worker_routing", command["routing"]) if "routing" in command else None
        if module:
            args = module.engine_args(args)
        stats_class = _stats_class()
        arguments = EngineArgs(**{**args, "disable_log_stats": False})
        self.engine = LLMEngine.from_engine_args(arguments, stat_loggers=[stats_class])
        self.stats = stats_class.current
        self.routing = module.attach(self.engine) if module else None
        self._check_sampling(sampler)
        self._load_adapters(command["adapters"])
        self.emit("loaded", load_s=time.perf_counter() - started, **_describe(self.engine, devices))

    def check(self, command: Line) -> None:
        """Ask vLLM's own classes what it would refuse. No weights are read and no engine is started."""
        from vllm.engine.arg_utils import EngineArgs

        def refuse(where: str | int, error: Exception) -> None:
            self.emit("refused", where=where, error=_error_text(error))

        config = None
        try:
            _check_names("engine.args", command["args"], [field.name for field in dataclasses.fields(EngineArgs)])
            _check_batch_invariance()
            config = EngineArgs(**command["args"]).create_engine_config()
        except Exception as error:
            refuse("engine.args", error)
        try:
            sampler, verify = _Sampler(command["sampling"]), _Verifier(config) if config else _check_nothing
            verify(sampler.default)
        except Exception as error:
            refuse("sampling", error)
        else:
            for number, own in enumerate(command["samplings"]):
                try:
                    verify(sampler.params(own))
                except Exception as error:
                    refuse(number, error)
        if config:
            for name, folder in command["adapters"].items():
                try:
                    _check_adapter(config, folder)
                except Exception as error:
                    refuse(f"engine.lora_modules.{name}", error)
        self.emit("checked")

    def _check_sampling(self, sampler: _Sampler) -> None:
        """vLLM's own check of sampling against the model: tokens that it has, grammars that compile, and so on."""
        prompt, tasks = {"type": "token", "prompt_token_ids": [0]}, self.engine.get_supported_tasks()
        try:
            self.engine.input_processor.process_inputs("check", prompt, sampler.default, tasks)
        except Exception as error:
            raise ValueError(f"the job's sampling does not fit the model: {_error_text(error)}") from None

    def _load_adapters(self, folders: Line) -> None:
        if not folders:
            return
        from vllm.lora.request import LoRARequest

        _check_triton(self.engine.vllm_config.model_config)
        for number, (name, folder) in enumerate(folders.items(), 1):
            self.adapters[name] = LoRARequest(name, number, folder)
            try:
                self.engine.add_lora(self.adapters[name])
            except Exception as error:
                raise ValueError(f"engine.lora_modules.{name} cannot be loaded: {_error_text(error)}") from None

    def probe(self, mib: int) -> float:
        """Median seconds to stream `mib` MiB through memory, on all allowed processors at once."""
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        share = (mib << 20) // threads
        if [size for *_, size in self.probe_buffers] != [share] * threads:
            self.probe_buffers = []
            for _ in range(threads):
                source, sink = (ctypes.create_string_buffer(share) for _ in range(2))
                ctypes.memset(source, 1, share)
                self.probe_buffers.append((sink, source, share))
        times = []
        for _ in range(7):
            pool = [threading.Thread(target=ctypes.memmove, args=buffers) for buffers in self.probe_buffers]
            started = time.perf_counter()
            for thread in pool:
                thread.start()
            for thread in pool:
                thread.join()
            times.append(time.perf_counter() - started)
        return sorted(times)[len(times) // 2]

    def run_pass(self, command: Line, commands: Commands) -> None:
        """Feed a bounded queue in the given order, and step until every request is answered."""
        engine, limit = self.engine, command["queue"]
        sampler = _Sampler(command["sampling"])
        self.stats.clear()
        if self.routing:
            self.routing.begin(command.get("routing") or {})
        steps = _StepLog(self)
        # As many as fit, so that the first batch does not depend on how fast the parent writes; fewer if the parent
        # pauses or takes too long, because its prompts come as a stream.
        first = self._take(commands, limit, wait=True, patience_s=SILENT_AFTER_S)
        self._empty_prefix_cache(first)
        steal, hardware = CpuSteal(), accelerator()
        started = time.perf_counter()
        in_flight, ended = self._feed(first, sampler)  # requests; the engine itself counts samples
        while in_flight or not ended:
            if not ended and in_flight < limit:
                added, ended = self._feed(self._take(commands, limit - in_flight, wait=not in_flight), sampler)
                in_flight += added
                if not in_flight:
                    continue
            before = time.perf_counter()
            outputs = engine.step()
            now = time.perf_counter()
            steps.add(now - before, self.stats.running, self.stats.waiting, now)
            in_flight -= self._emit_outputs(outputs, now - started)
        wall_s = time.perf_counter() - started
        steps.flush()
        self.emit(
            "pass_done",
            wall_s=wall_s,
            steal=steal.share(),
            accelerator={**hardware, **accelerator("after_")},
            **self.stats.sums,
        )
        self.out.flush()
        _trim_memory()

    def _empty_prefix_cache(self, first: list[Line]) -> None:
        """A pass finds nothing that the last one left, unless its requests have salts that say what they share."""
        if all("salt" in line for line in first if line["op"] == "request"):
            return
        if self.engine.vllm_config.cache_config.enable_prefix_caching and not self.engine.reset_prefix_cache():
            raise RuntimeError(
                "vLLM did not empty its prefix cache, so this pass would find the prefixes of the last one"
            )

    def _take(self, commands: Commands, most: int, *, wait: bool, patience_s: float = 0.0) -> list[Line]:
        """Up to `most` lines: those that are available, and each that comes within `patience_s` of the last.

        Args:
            wait: for the first line, however long it takes.
        """
        lines, until = [self._wait(commands)] if wait else [], time.monotonic() + GATHERING_S
        with contextlib.suppress(queue.Empty):
            while len(lines) < most and not (lines and lines[-1]["op"] == "end") and time.monotonic() < until:
                lines.append(commands.get(timeout=patience_s))
        return lines

    def _wait(self, commands: Commands) -> Line:
        """The next line, however long it takes, with heartbeats meanwhile."""
        while True:
            with contextlib.suppress(queue.Empty):
                return commands.get(timeout=HEARTBEAT_S)
            self.emit("idle")
            self.out.flush()

    def _feed(self, lines: list[Line], sampler: _Sampler) -> tuple[int, bool]:
        """Give requests to the engine. A request that it refuses is answered as failed; the others go on.

        Returns how many the engine took, and whether these were the last.
        """
        from vllm.exceptions import VLLMClientError

        taken = 0
        for line in lines:
            if line["op"] == "end":
                return taken, True
            prompt = {"type": "token", "prompt_token_ids": line["ids"]}
            if "salt" in line:
                prompt["cache_salt"] = line["salt"]
            try:
                params, lora = sampler.params(line.get("sampling")), self._adapter(line.get("lora"))
                if getattr(params, "structured_outputs", None):
                    self.verify = self.verify or _Verifier(self.engine.vllm_config)
                    self.verify(params)
                self.engine.add_request(str(line["n"]), prompt, params, lora_request=lora)
                taken += 1
            except (VLLMClientError, ValueError, TypeError) as error:
                self.emit("failed", n=line["n"], error=_error_text(error))
        return taken, False

    def _adapter(self, name: str | None) -> Any:
        if name is not None and name not in self.adapters:
            raise ValueError(f"no adapter {name!r} is in engine.lora_modules")
        return self.adapters[name] if name else None

    def _emit_outputs(self, outputs: list[Any], at_s: float) -> int:
        done = 0
        for output in outputs:
            if not output.finished:
                continue
            done += 1
            if self.routing and (routes := self.routing.take(output)):
                self.emit("routes", n=int(output.request_id), **routes)
            self.emit(
                "output",
                n=int(output.request_id),
                completions=[_completion(sample) for sample in output.outputs],
                cached=output.num_cached_tokens or 0,
                scheduled=output.metrics.scheduled_ts if output.metrics else 0.0,
                at_s=round(at_s, 6),
            )
        if done:
            self.out.flush()  # at once, so that a kill loses no finished request
        return done


# -- requests and answers ----------------------------------------------------------------------------------------------


def _completion(sample: Any) -> dict[str, Any]:
    """One sample of a request, as the fields of the parent's `Completion`."""
    parts = {
        "token_ids": list(sample.token_ids),
        "text": sample.text,
        "finish_reason": sample.finish_reason,
        "stop_reason": sample.stop_reason,
    }
    if sample.logprobs is not None:
        parts["logprobs"] = [
            [[token, max(entry.logprob, LOWEST_LOGPROB), entry.decoded_token or ""] for token, entry in likely.items()]
            for likely in sample.logprobs
        ]
    return parts


class _Sampler:
    """vLLM's SamplingParams from plain mappings; the pass's own are created once."""

    def __init__(self, base: Line) -> None:
        self.base = base
        self.default = self._params({})

    def params(self, own: Line | None) -> Any:
        return self._params(own) if own else self.default

    def _params(self, own: Line) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, StructuredOutputsParams

        fields = {**self.base, **own}
        for key, kind in (
            ("structured_outputs", StructuredOutputsParams),
            ("repetition_detection", RepetitionDetectionParams),
        ):
            if isinstance(fields.get(key), dict):
                fields[key] = kind(**fields[key])
        if isinstance(fields.get("logit_bias"), dict):  # JSON's keys are strings
            fields["logit_bias"] = {int(token): bias for token, bias in fields["logit_bias"].items()}
        _check_names("sampling", fields, SamplingParams.__struct_fields__)
        _check_types(fields, SamplingParams)
        _check_seed(fields.get("seed"))
        return SamplingParams(**fields, output_kind=RequestOutputKind.FINAL_ONLY)


def _check_names(where: str, given: Line, known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise ValueError(f"{where}.{key} is unknown to vLLM" + (f": did you mean {near[0]!r}?" if near else ""))


def _check_types(fields: Line, kind: Any) -> None:
    """vLLM reads most values only in the step that uses them, where one of another type ends the engine."""
    if hasattr(kind, "__struct_config__"):  # of msgspec, as vLLM's own classes are
        import msgspec

        plain = {name: value for name, value in fields.items() if not dataclasses.is_dataclass(value)}
        try:
            msgspec.convert(plain, kind)
        except msgspec.ValidationError as error:
            raise ValueError(f"sampling: {error}") from None


def _tokenizer_of(config: Any) -> Any:
    try:
        from vllm.tokenizers import cached_tokenizer_from_config
    except ImportError:  # before 0.12
        from vllm.transformers_utils.tokenizer import cached_tokenizer_from_configs

        return cached_tokenizer_from_configs(config.model_config)

    return cached_tokenizer_from_config(config.model_config)


class _Verifier:
    """What vLLM checks of each request: token ids that the model has, grammars that compile, and so on.

    It also raises where requests need several structured-output backends, which vLLM does not: it takes that of
    whichever request comes first for all of them, so that the order would decide which constraints hold.
    """

    def __init__(self, config: Any) -> None:
        self.config, self.tokenizer = config, _tokenizer_of(config)
        self.backend: str | None = None  # of the first request that needs one

    def __call__(self, params: Any) -> None:
        config = self.config
        params.verify(config.model_config, config.speculative_config, config.structured_outputs_config, self.tokenizer)
        if not params.structured_outputs:
            return
        backend = params.structured_outputs._backend  # which `verify` has chosen
        self.backend = self.backend or backend
        if backend != self.backend:
            raise ValueError(
                f"needs the structured-output backend {backend}, and earlier requests {self.backend}: vLLM takes that "
                "of whichever comes first for all, so the order would decide which constraints hold. Set "
                f"engine.args.structured_outputs_config to {{backend: {backend}}}"
            )


def _check_nothing(params: Any) -> None:
    """Where vLLM takes no settings of the engine, nothing can be asked about a request."""


def _check_triton(model: Any) -> None:
    """Raise ValueError where an engine with adapters would die at its first step."""
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON and model.is_moe:
        raise ValueError(
            "engine.lora_modules: with adapters vLLM runs a mixture of experts on Triton's kernels alone, and there is "
            "no Triton here. Leave them out, or use an engine on a GPU"
        )


def _check_adapter(config: Any, folder: str) -> None:
    """Raise ValueError for an adapter that vLLM would refuse once the model is loaded."""
    from vllm.lora.peft_helper import PEFTHelper

    _check_triton(config.model_config)
    if not any(name.startswith("adapter_model.") for name in os.listdir(folder)):
        raise ValueError(f"{folder} has no weights (adapter_model.safetensors)")
    PEFTHelper.from_local_dir(folder, None).validate_legal(config.lora_config)


def _check_seed(seed: object) -> None:
    """vLLM reads a seed only in the step that draws with it, where a value out of range ends the engine."""
    if seed is not None and not (isinstance(seed, int) and -(2**63) <= seed < 2**63):
        raise ValueError(f"sampling.seed must be an integer of 64 bits, not {seed!r}")


# -- measurements ------------------------------------------------------------------------------------------------------


class _StepLog:
    """Step times and batch sizes, sent in chunks; a chunk at least every HEARTBEAT_S is the heartbeat."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.sent = time.perf_counter()
        self.ms: list[float] = []
        self.running: list[int] = []
        self.waiting: list[int] = []

    def add(self, seconds: float, running: int, waiting: int, now: float) -> None:
        self.ms.append(round(seconds * 1000, 4))
        self.running.append(running)
        self.waiting.append(waiting)
        if len(self.ms) >= STEPS_PER_EVENT or now - self.sent > HEARTBEAT_S:
            self.flush()
            self.sent = now

    def flush(self) -> None:
        if self.ms:
            self.session.emit("steps", ms=self.ms, running=self.running, waiting=self.waiting)
            self.session.out.flush()
            self.ms, self.running, self.waiting = [], [], []


def _stats_class() -> Any:
    """A class that vLLM instantiates: the scheduler's statistics of the newest step, and sums over a pass."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class StepStats(StatLoggerBase):
        current: StepStats

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self.clear()
            StepStats.current = self

        def clear(self) -> None:
            self.running = self.waiting = 0
            self.sums = dict.fromkeys(("preempted", "prefix_queries", "prefix_hits"), 0)

        def record(
            self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0, **_: Any
        ) -> None:
            if scheduler_stats is not None:
                self.running = scheduler_stats.num_running_reqs
                self.waiting = scheduler_stats.num_waiting_reqs
                prefix = scheduler_stats.prefix_cache_stats
                if prefix is not None:
                    self.sums["prefix_queries"] += prefix.queries
                    self.sums["prefix_hits"] += prefix.hits
            if iteration_stats is not None:
                self.sums["preempted"] += iteration_stats.num_preempted_reqs

        def log_engine_initialized(self) -> None:
            pass

    return StepStats


# -- engine and devices ------------------------------------------------------------------------------------------------


def _check_batch_invariance() -> None:
    """Raise ValueError on devices for which vLLM has no batch-invariant mode; vLLM itself says so late, or never.

    With 0.32 on CPUs a mixture of experts does not load ("No Unquantized MoE backend supports …"), and a dense model
    loads and dies at its first step. The devices in the message are those of vLLM's documentation.
    """
    if os.environ.get("VLLM_BATCH_INVARIANT", "0") == "0":
        return
    from vllm.platforms import current_platform as platform

    if platform.is_cpu() or (platform.is_cuda() and not platform.has_device_capability(80)):
        raise ValueError(
            "vLLM has no batch-invariant mode (engine.batch_invariant, VLLM_BATCH_INVARIANT) for this device: it needs "
            "an NVIDIA GPU of compute capability 8.0 or higher, an AMD Instinct (gfx90a, gfx942, gfx950) or Intel's XPU"
        )


def _load_module(name: str, source: str) -> Any:
    """Import a module from its text, without a file."""
    module = types.ModuleType(name)
    sys.modules[name] = module  # dataclasses look it up there
    exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    return module


def _describe(engine: Any, devices: list[str] | None) -> dict[str, Any]:
    """Versions, device, and the settings that vLLM chose."""
    import platform

    import torch
    import vllm
    from vllm.platforms import current_platform

    config = engine.vllm_config
    blocks = config.cache_config.num_gpu_blocks or 0
    return {
        "versions": {"vllm": vllm.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "machine": {
            "device": current_platform.get_device_name(0) if not current_platform.is_cpu() else _processor(),
            "device_type": current_platform.device_type,
            "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "system": platform.platform(),
        },
        "settings": {
            "max_model_len": config.model_config.max_model_len,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "policy": str(config.scheduler_config.policy),
            "dtype": str(config.model_config.dtype),
            "mode": "eager" if config.model_config.enforce_eager else "compiled",
            "prefix_caching": bool(config.cache_config.enable_prefix_caching),
            "kv_cache_tokens": blocks * config.cache_config.block_size,
            "in_process": os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0",
            **({"devices": devices} if devices else {}),
        },
    }


def pin_devices(replica: int, replicas: int, ranks: int, devices: list[str] | None, own: list[str]) -> list[str]:
    """Restrict this process to the devices of one replica before vLLM uses any, and return their names.

    Devices are accelerators where vLLM is built for them, otherwise processors.

    Args:
        ranks: devices that vLLM takes (accelerators), or worker processes that share them (processors).
        devices: named by the user; None: an equal part of those that this process may use.
        own: variables that the user set; these stay as they are.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return _pin_processors(replica, replicas, ranks, devices, own)
    variable = current_platform.device_control_env_var
    if devices is None:
        listed = [word for word in os.environ.get(variable, "").split(",") if word]
        visible = listed or [str(k) for k in range(current_platform.device_count())]
        if len(visible) < replicas * ranks:
            raise ValueError(f"{replicas} replicas of {ranks} devices need {replicas * ranks}, and {len(visible)} are "
                             "visible: lower engine.replicas, or name other devices in engine.devices")  # fmt: skip
        devices = visible[replica * ranks : (replica + 1) * ranks]
    os.environ[variable] = ",".join(devices)
    return devices


def _pin_processors(replica: int, replicas: int, ranks: int, devices: list[str] | None, own: list[str]) -> list[str]:
    """Bind this process to its processors, with one computing thread per core."""
    import torch

    if "VLLM_CPU_OMP_THREADS_BIND" in own or not hasattr(os, "sched_setaffinity"):
        return []
    if devices is None:
        cores = _cores(os.sched_getaffinity(0))
        cores = cores[replica * len(cores) // replicas : (replica + 1) * len(cores) // replicas]
    else:
        cores = _cores({int(word) for word in devices})
    if len(cores) < ranks:
        raise ValueError(f"replica {replica + 1} of {replicas} has {len(cores)} processor cores for {ranks} workers: "
                         "lower engine.replicas, or name its processors in engine.devices")  # fmt: skip
    processors = sorted(processor for core in cores for processor in core)
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(task), processors)
    # vLLM binds the threads of its own worker processes by this variable, but not those of this process.
    firsts = [str(core[0]) for core in cores]
    parts = [firsts[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks] for rank in range(ranks)]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(",".join, parts))
    if "OMP_NUM_THREADS" not in own:
        os.environ["OMP_NUM_THREADS"] = str(len(cores))
        torch.set_num_threads(len(cores))
    return [str(processor) for processor in processors]


def _cores(processors: set[int]) -> list[list[int]]:
    """Processors grouped by their core; cores of one package are neighbours."""

    def core(processor: int) -> tuple[int, int]:
        folder = f"/sys/devices/system/cpu/cpu{processor}/topology"
        try:
            with open(f"{folder}/physical_package_id") as package, open(f"{folder}/core_id") as number:
                return int(package.read()), int(number.read())
        except (OSError, ValueError):
            return 0, processor

    cores: dict[tuple[int, int], list[int]] = {}
    for processor in sorted(processors):
        cores.setdefault(core(processor), []).append(processor)
    return [cores[key] for key in sorted(cores)]


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as source:
        for line in source:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "CPU"


# -- the machine -------------------------------------------------------------------------------------------------------


class CpuSteal:
    """Share of processor time that the host has taken since creation; 0 where the system does not report it."""

    def __init__(self) -> None:
        self.before = self._read()

    @staticmethod
    def _read() -> tuple[int, int]:
        with contextlib.suppress(OSError), open("/proc/stat") as source:
            ticks = [int(word) for word in source.readline().split()[1:9]]
            return ticks[7], sum(ticks)
        return 0, 0

    def share(self) -> float:
        stolen, total = (now - then for now, then in zip(self._read(), self.before, strict=True))
        return stolen / total if total else 0.0


def accelerator(prefix: str = "") -> dict[str, float]:
    """Lowest clock, highest temperature and throttling of the NVIDIA devices; empty where there are none."""
    try:
        import vllm.third_party.pynvml

        pynvml: Any = vllm.third_party.pynvml
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(k) for k in range(pynvml.nvmlDeviceGetCount())]
        slow = pynvml.nvmlClocksThrottleReasonHwSlowdown | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
        readings = {
            "sm_clock_mhz": min(pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM) for h in handles),
            "temperature_c": max(pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU) for h in handles),
            "throttled": max(bool(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(h) & slow) for h in handles),
        }
        return {prefix + key: float(value) for key, value in readings.items()}
    except Exception:  # an optional library: any fault means no reading
        return {}


def _trim_memory() -> None:
    """Return freed pages to the system: without it resident memory grows over thousands of requests."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _error_text(error: BaseException) -> str:
    """The error's message on one line; of a chain, that of the first cause, which names what was wrong."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())[:2000] or type(error).__name__


if __name__ == "__main__":
    main()
