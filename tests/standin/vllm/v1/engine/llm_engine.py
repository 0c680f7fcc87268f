"""A scheduler without a model: first come, first served, one token per sequence and step."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
import zlib
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace

from ...engine.arg_utils import EngineArgs
from ...exceptions import VLLMClientError
from ...model_executor.layers.fused_moe.router.cpu_router import CPURouter

DRIFTS_FROM = 3  # token
HELD_S = 120.0  # a step at most: a test that never lets go fails by what it asserts


def generated(
    prompt: list[int], max_tokens: int | None, max_model_len: int, sample: int = 0, *, lossy: bool = False
) -> list[int]:
    """What a prompt generates: as many tokens as are asked and fit, from a checksum of the prompt's."""
    room = max_model_len - len(prompt)
    seed = zlib.crc32(b",".join(b"%d" % token for token in prompt)) + sample
    tokens = [(seed >> (k % 24)) % 997 for k in range(room if max_tokens is None else min(room, max_tokens))]
    drift = int(os.environ.get("STANDIN_DRIFT", "0"))
    drifts = lossy or (drift and not seed % drift)
    return [*tokens[:DRIFTS_FROM], *(997 - t for t in tokens[DRIFTS_FROM:])] if drifts else tokens


class Runner:
    """vLLM's model runner, as far as whoever listens to routers asks for it."""

    def __init__(self) -> None:
        self.router = CPURouter()
        self.input_batch = SimpleNamespace(req_ids=[], num_computed_tokens_cpu=[], num_prompt_tokens=[])

    def get_model(self) -> SimpleNamespace:
        return SimpleNamespace(modules=lambda: [SimpleNamespace(layer_id=0, router=self.router)])

    def _prepare_inputs(self, scheduled: object) -> None:
        pass


class LLMEngine:
    def __init__(self, args: EngineArgs, stats: object) -> None:
        self.args, self.stats = args, stats
        self.log = open(os.environ["STANDIN_LOG"], "ab", buffering=0) if "STANDIN_LOG" in os.environ else None  # noqa: SIM115
        self.step_s, self.kind_s = (float(os.environ.get(f"STANDIN_{of}_MS", "0")) / 1000 for of in ("STEP", "KIND"))
        self.steps = os.environ.get("STANDIN_STEPS")
        self.poison = int(os.environ.get("STANDIN_POISON", "-1"))
        is_held = os.environ.get("CUDA_VISIBLE_DEVICES") == os.environ.get("STANDIN_HELD_DEVICE", "none")
        self.held = os.environ.get("STANDIN_HELD") if is_held else None  # it steps once this file is gone
        if "STANDIN_ARGS" in os.environ:
            with open(os.environ["STANDIN_ARGS"], "w") as told:
                json.dump(dataclasses.asdict(args), told)
        self.input_processor = SimpleNamespace(process_inputs=lambda *_: None)
        self.waiting: deque = deque()
        self.running: list = []
        self.runner = Runner()
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(world_size=1),
            cache_config=SimpleNamespace(num_gpu_blocks=1, block_size=16, enable_prefix_caching=False),
            model_config=SimpleNamespace(max_model_len=args.max_model_len, dtype=args.dtype, enforce_eager=True),
            scheduler_config=SimpleNamespace(
                max_num_seqs=args.max_num_seqs, max_num_batched_tokens=args.max_model_len, policy="fcfs"
            ),
        )

    @classmethod
    def from_engine_args(cls, args: EngineArgs, stat_loggers: list) -> LLMEngine:
        return cls(args, stat_loggers[0](None))

    def collective_rpc(self, call: Callable[[SimpleNamespace], object]) -> list[object]:
        return [call(SimpleNamespace(model_runner=self.runner))]

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def add_request(self, request_id: str, prompt: dict, params: object, lora_request: object = None) -> None:
        ids = prompt["prompt_token_ids"]
        if not 0 < len(ids) < self.args.max_model_len:
            raise VLLMClientError(f"a prompt of {len(ids)} tokens does not fit into {self.args.max_model_len}")
        asked = params.max_tokens, self.args.max_model_len
        lossy = "_compute_routing" in vars(self.runner.router)
        samples = [generated(ids, *asked, sample, lossy=lossy) for sample in range(params.n)]
        self.waiting.append([request_id, samples, 0, 0.0, ids[-1]])

    def get_num_unfinished_requests(self) -> int:
        return len(self.waiting) + len(self.running)

    def step(self) -> list:
        while self.waiting and len(self.running) < self.args.max_num_seqs:
            request = self.waiting.popleft()
            request[3] = time.monotonic()
            self.running.append(request)
        if self.poison in {request[4] for request in self.running}:
            os.kill(os.getpid(), signal.SIGKILL)
        self.runner._prepare_inputs(SimpleNamespace(num_scheduled_tokens={}))
        self._pass_time()
        for request in self.running:
            request[2] += 1
        self.stats.record(
            SimpleNamespace(
                num_running_reqs=len(self.running), num_waiting_reqs=len(self.waiting), prefix_cache_stats=None
            ),
            None,
        )
        finished = [request for request in self.running if request[2] >= len(request[1][0])]
        self.running = [request for request in self.running if request[2] < len(request[1][0])]
        if self.log and finished:  # what was generated, whatever becomes of it
            self.log.write(b"".join(b"%s\n" % request[0].encode() for request in finished))
        return [_answer(*request) for request in finished]

    def _pass_time(self) -> None:
        """A step's own time, and some for each kind of prompt that runs, as experts take when they are read."""
        until = time.monotonic() + HELD_S
        while self.held and os.path.exists(self.held) and time.monotonic() < until:
            time.sleep(0.005)
        if pause := self.step_s + self.kind_s * len({request[4] for request in self.running}):
            time.sleep(pause)
        if self.steps:
            with open(self.steps, "a") as log:
                log.write(f"{os.getpid()} {time.monotonic()}\n")


def _answer(request_id: str, samples: list[list[int]], _: int, scheduled: float, kind: int) -> SimpleNamespace:
    outputs = [
        SimpleNamespace(
            token_ids=tokens, text=" ".join(map(str, tokens)), finish_reason="length", stop_reason=None, logprobs=None
        )
        for tokens in samples
    ]
    metrics = SimpleNamespace(scheduled_ts=scheduled)
    return SimpleNamespace(finished=True, request_id=request_id, outputs=outputs, num_cached_tokens=0, metrics=metrics)
