"""An engine in memory with a queue, seats and a law for the time of a step: what an order gains there is known.

A step's time grows with the distinct experts that its sequences touch: a token touches 6 % of them. Sequences of the
candidate's order share experts and act like half as many tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import Completion, EngineInfo, Failure, Output, PassStats, Request, Steps
from orderproof.outputs.passes import CANDIDATE

TOUCHED_BY_A_TOKEN = 0.06
FIXED_MS, EXPERTS_MS, PREFILL_MS = 2.0, 20.0, 0.002  # of a step; of all experts; of a prompt token


class QueueEngine:
    """Keeps the engine protocol. Prompt k is told by its first token, `tokens_per_prompt`·k."""

    def __init__(self, lengths: NDArray[np.int64], seats: int, tokens_per_prompt: int = 20) -> None:
        """`lengths`: int64[prompts], tokens that each generates."""
        self.lengths, self.seats, self.tokens_per_prompt = lengths, seats, tokens_per_prompt
        self.noise = np.random.default_rng(5)
        self.clock_s = 100.0
        self.runs = 0
        self.info = EngineInfo(
            1.5, {"vllm": "0"}, {"device_type": "none"}, {"max_num_seqs": seats, "prefix_caching": True}
        )

    def __enter__(self) -> QueueEngine:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def probe(self, mib: int) -> float:
        return 0.03

    def run(
        self,
        requests: Iterable[Request],
        sampling: Mapping[str, Any],
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None = None,
    ) -> PassStats:
        asked, began_s = list(requests), self.clock_s
        self.runs += 1
        prompts = np.array([request.token_ids[0] // self.tokens_per_prompt for request in asked])
        limits = [{**sampling, **(request.sampling or {})}.get("max_tokens") or 10**6 for request in asked]
        left = np.minimum(self.lengths[prompts], limits)
        generated, admitted = left.copy(), np.zeros(len(asked))
        weights = np.array([0.5 if (request.cache_salt or "").endswith(CANDIDATE) else 1.0 for request in asked])
        running, waiting = np.empty(0, np.int64), 0
        step_ms, counts = [], []
        while len(running) or waiting < len(asked):
            fresh = np.arange(waiting, min(len(asked), waiting + self.seats - len(running)))
            waiting += len(fresh)
            admitted[fresh] = self.clock_s
            running = np.concatenate([running, fresh])
            prefill = sum(len(asked[k].token_ids) for k in fresh.tolist())
            ms = step_time_ms(weights[running].sum()) + PREFILL_MS * prefill
            ms *= float(np.exp(self.noise.normal(0, 0.01)))
            self.clock_s += ms / 1000
            step_ms.append(ms)
            counts.append(len(running))
            left[running] -= 1
            done = running[left[running] <= 0]
            for k in done.tolist():
                completion = Completion([asked[k].number] * int(generated[k]), "text", "stop")
                sink(Output(asked[k].number, (completion,), 0, float(admitted[k]), self.clock_s - began_s))
            running = running[left[running] > 0]
        return PassStats(
            wall_s=self.clock_s - began_s,
            step_ms=np.array(step_ms, np.float32),
            running=np.array(counts, np.int32),
            waiting=np.zeros(len(counts), np.int32),
            preempted=0,
            prefix_queries=0,
            prefix_hits=0,
        )


def step_time_ms(tokens: float) -> float:
    """Of a step that touches as many experts as so many tokens of different prompts."""
    return float(FIXED_MS + EXPERTS_MS * (1 - (1 - TOUCHED_BY_A_TOKEN) ** tokens))
