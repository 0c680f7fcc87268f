"""An engine in virtual time: no model runs, and each step takes what its experts and its batch cost.

It keeps the engine protocol, so that a trial or a calibration runs on it in milliseconds. Outputs are token ids of the
right number, all 0. Left out: preemption (the KV cache is large enough), prefix caching, the growth of attention with
a sequence's length, and the machine's noise unless `noise_sd` is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import Completion, EngineInfo, Failure, Output, PassStats, Request, Steps
from orderproof.job.spec import BATCHED_TOKENS
from orderproof.routing.replay import SimRequest, StepChunk, replay
from orderproof.routing.route_source import RouteSource
from orderproof.routing.step_costs import StepCosts

PROBE_S = 0.05


@dataclass(frozen=True)
class Settings:
    """The engine's own arguments, and the noise of its machine."""

    max_num_seqs: int
    max_num_batched_tokens: int = BATCHED_TOKENS
    max_model_len: int = 1 << 20
    noise_sd: float = 0.0  # of the logarithm of a pass's time
    seed: int = 0  # of that noise


class ReplayEngine:
    """Keeps the engine protocol in virtual time."""

    def __init__(self, source: RouteSource, costs: StepCosts, settings: Settings) -> None:
        self._source, self._costs, self._settings = source, costs, settings
        self._noise = np.random.default_rng(settings.seed)
        self._clock_s = 0.0  # never goes back, as a machine's

    def __enter__(self) -> ReplayEngine:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            load_s=0.0,
            versions={},
            machine={"device": "virtual time", "device_type": "replay"},
            settings={**vars(self._settings), "mode": "replay", "prefix_caching": False, "in_process": True},
        )

    def probe(self, mib: int) -> float:
        return PROBE_S

    def run(
        self,
        requests: Iterable[Request],
        sampling: Mapping[str, Any],
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None = None,
    ) -> PassStats:
        collected: list[Steps] = []
        replayed = _Pass(self._source, self._settings, sampling, sink)
        slower = float(np.exp(self._noise.normal(0.0, self._settings.noise_sd)))
        start_s = self._clock_s
        for chunk in replayed.chunks(requests):
            ms = slower * self._costs.ms(chunk.running, chunk.experts, chunk.prefill_tokens)
            ends_s = self._clock_s + np.cumsum(ms) / 1000
            replayed.answer(chunk, np.concatenate([[self._clock_s], ends_s]), start_s)
            self._clock_s = float(ends_s[-1])
            (watch or collected.append)(Steps(ms.astype(np.float32), chunk.running, chunk.waiting))
        return PassStats(
            wall_s=self._clock_s - start_s,
            step_ms=np.concatenate([np.empty(0, np.float32), *(steps.ms for steps in collected)]),
            running=np.concatenate([np.empty(0, np.int32), *(steps.running for steps in collected)]),
            waiting=np.concatenate([np.empty(0, np.int32), *(steps.waiting for steps in collected)]),
            preempted=0,
            prefix_queries=0,
            prefix_hits=0,
        )


@dataclass
class _InFlight:
    """A request that was sent and not yet answered."""

    tokens: int  # of each sample
    samples: int
    running: int  # samples that have not ended
    scheduled_s: float = math.inf  # of its first sample


class _Pass:
    """One pass: requests in, answers out; holds those in between."""

    def __init__(
        self,
        source: RouteSource,
        settings: Settings,
        sampling: Mapping[str, Any],
        sink: Callable[[Output | Failure], None],
    ) -> None:
        self._source, self._settings, self._sampling, self._sink = source, settings, sampling, sink
        self._in_flight: dict[int, _InFlight] = {}

    def chunks(self, requests: Iterable[Request]) -> Iterator[StepChunk]:
        settings = self._settings
        return replay(
            self._sim_requests(requests), self._source, settings.max_num_seqs, settings.max_num_batched_tokens
        )

    def answer(self, chunk: StepChunk, clock_s: NDArray[np.float64], start_s: float) -> None:
        """Answer what ends in a chunk. clock_s[steps + 1]: when each step begins, and the last one ends."""
        for step, number in chunk.admitted:
            request = self._in_flight[number]
            request.scheduled_s = min(request.scheduled_s, float(clock_s[step - chunk.first]))
        for step, number in chunk.ended:
            request = self._in_flight[number]
            request.running -= 1
            if not request.running:
                del self._in_flight[number]
                completions = (Completion([0] * request.tokens, "", "length"),) * request.samples
                at_s = float(clock_s[step - chunk.first + 1]) - start_s
                self._sink(Output(number, completions, 0, request.scheduled_s, at_s))

    def _sim_requests(self, requests: Iterable[Request]) -> Iterator[SimRequest]:
        for request in requests:
            prompt_tokens = len(request.token_ids)
            room = self._settings.max_model_len - prompt_tokens
            if not prompt_tokens or room < 1:
                reason = f"a prompt of {prompt_tokens} tokens, and max_model_len is {self._settings.max_model_len}"
                self._sink(Failure(request.number, reason))
                continue
            sampling = {**self._sampling, **(request.sampling or {})}
            tokens, samples = min(sampling["max_tokens"], room), int(sampling.get("n") or 1)
            self._in_flight[request.number] = _InFlight(tokens, samples, samples)
            for sample in range(samples):
                yield SimRequest(request.number, prompt_tokens, tokens, sample)
