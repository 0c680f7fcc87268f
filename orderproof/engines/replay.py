"""An engine in virtual time: no model runs, and each step takes what its experts and its batch cost.

In: a source of routes, the constants of a step, and the settings to ask about. Out: an `Engine`, so that the same trial
and the same verdict run on it in milliseconds. Outputs are token ids of the right number, all 0: what is generated is
not foretold. Knows nothing of orders or trials.

What it leaves out: preemption (the KV cache is taken as large enough), prefix caching, the growth of attention with the
length of a sequence, and the machine's noise unless `noise_sd` is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import Completion, EngineInfo, Failure, Figures, Output, Request, Steps
from orderproof.job.sampling import VLLM_MAX_TOKENS
from orderproof.job.spec import BATCHED_TOKENS
from orderproof.routing.replay import Load, StepChunk, replay
from orderproof.routing.route_source import RouteSource
from orderproof.routing.step_costs import StepCosts

PROBE_S = 0.05  # a machine that is always as quiet as at the start


@dataclass(frozen=True)
class Settings:
    """What is asked about: the engine's own arguments, and a machine that is supposed."""

    max_num_seqs: int
    max_num_batched_tokens: int = BATCHED_TOKENS
    max_model_len: int = 1 << 20
    devices: int = 1  # over which the experts are spread
    overhead_ms: float = 0.0  # that a step costs more because of that
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
            machine={"device": "virtual time", "device_type": "replay", "constants": self._costs.source},
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
    ) -> Figures:
        lots: list[Steps] = []
        this = _Pass(self._source, self._settings, sampling, sink)
        slower = float(np.exp(self._noise.normal(0.0, self._settings.noise_sd)))
        began = self._clock_s
        for lot in this.lots(requests):
            ms = slower * (self._costs.ms(lot.running, lot.experts, lot.prefill_tokens) + self._settings.overhead_ms)
            ends_s = self._clock_s + np.cumsum(ms) / 1000
            this.answer(lot, np.concatenate([[self._clock_s], ends_s]), began)
            self._clock_s = float(ends_s[-1])
            (watch or lots.append)(Steps(ms.astype(np.float32), lot.running, lot.waiting))
        return Figures(
            wall_s=self._clock_s - began,
            step_ms=np.concatenate([np.empty(0, np.float32), *(steps.ms for steps in lots)]),
            running=np.concatenate([np.empty(0, np.int32), *(steps.running for steps in lots)]),
            waiting=np.concatenate([np.empty(0, np.int32), *(steps.waiting for steps in lots)]),
            preempted=0,
            prefix_queries=0,
            prefix_hits=0,
        )


@dataclass
class _Flight:
    """A request that was sent and not yet answered."""

    tokens: int  # of each sample
    finish_reason: str
    samples: int
    running: int  # samples that have not ended
    scheduled_s: float = math.inf  # of its first sample


class _Pass:
    """One pass: requests in, answers out. Holds those between."""

    def __init__(
        self,
        source: RouteSource,
        settings: Settings,
        sampling: Mapping[str, Any],
        sink: Callable[[Output | Failure], None],
    ) -> None:
        self._source, self._settings, self._sampling, self._sink = source, settings, sampling, sink
        self._flying: dict[int, _Flight] = {}

    def lots(self, requests: Iterable[Request]) -> Iterator[StepChunk]:
        settings = self._settings
        return replay(
            self._loads(requests),
            self._source,
            settings.max_num_seqs,
            settings.max_num_batched_tokens,
            settings.devices,
        )

    def answer(self, lot: StepChunk, clock_s: NDArray[np.float64], began: float) -> None:
        """Hand over what ends in a lot. clock_s[steps + 1]: when each step begins, and the last one ends."""
        for step, number in lot.admitted:
            flight = self._flying[number]
            flight.scheduled_s = min(flight.scheduled_s, float(clock_s[step - lot.first]))
        for step, number in lot.ended:
            flight = self._flying[number]
            flight.running -= 1
            if not flight.running:
                del self._flying[number]
                completions = (Completion([0] * flight.tokens, "", flight.finish_reason),) * flight.samples
                at_s = float(clock_s[step - lot.first + 1]) - began
                self._sink(Output(number, completions, 0, flight.scheduled_s, at_s))

    def _loads(self, requests: Iterable[Request]) -> Iterator[Load]:
        for request in requests:
            prompt_tokens = len(request.token_ids)
            room = self._settings.max_model_len - prompt_tokens
            if not prompt_tokens or room < 1:
                why = f"a prompt of {prompt_tokens} tokens, and max_model_len is {self._settings.max_model_len}"
                self._sink(Failure(request.number, why))
                continue
            wish = {**self._sampling, **(request.sampling or {})}
            asked = wish.get("max_tokens", VLLM_MAX_TOKENS)
            most = room if asked is None else min(asked, room)
            real = None if wish.get("ignore_eos") else self._source.generated(request.number)
            tokens = most if real is None else min(real, most)
            samples = int(wish.get("n") or 1)
            self._flying[request.number] = _Flight(tokens, "length" if tokens == most else "stop", samples, samples)
            for sample in range(samples):
                yield Load(request.number, prompt_tokens, tokens, sample)
