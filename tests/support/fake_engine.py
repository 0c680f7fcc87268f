"""An engine in memory, for trials that need no model: every figure follows from what it is told.

In: what shall go wrong in which pass. Out: an `Engine` whose clock is virtual, and whose outputs depend on the prompt
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from orderproof.engines.protocol import Completion, EngineInfo, Failure, Output, PassStats, Request, Steps
from orderproof.job.model import ModelFacts, MoeFacts
from orderproof.prompts.tokenization import TokenizedPrompts

PROBE_S = 0.03
STEP_MS = 10.0
BATCH = 8
MOE = ModelFacts("models/m", "5f0c2a9e", "Qwen3MoeForCausalLM", 512, MoeFacts(64, 4, 4, 786432), toy=True)


@dataclass(frozen=True)
class Trouble:
    """What goes wrong in a pass."""

    failed: int = 0  # requests
    cut_short: int = 0  # requests that end one token early
    steal: float = 0.0
    probe: float = 1.0  # before it: times slower than a quiet machine
    throttled: float = 0.0
    wall: float = 1.0  # times slower: never a reason by itself
    admitted_backwards: bool = False


class FakeEngine:
    """Keeps the engine protocol. `troubles` maps the number of a pass (0: the warm-up) to what goes wrong in it."""

    def __init__(
        self, troubles: Mapping[int, Trouble] | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.troubles = dict(troubles or {})
        self.sent: list[list[int]] = []  # of each run, the requests' numbers in the order of sending
        self.salts: list[set[str | None]] = []  # of each run's requests
        self.info = EngineInfo(
            load_s=1.5,
            versions={"vllm": "0"},
            machine={"device_type": "none"},
            settings={"max_num_seqs": BATCH, "in_process": True, "mode": "eager", **(settings or {})},
        )

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def probe(self, mib: int) -> float:
        """It belongs to the pass that follows."""
        return PROBE_S * self._trouble(len(self.sent)).probe

    def run(
        self,
        requests: Iterable[Request],
        sampling: Mapping[str, Any],
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None = None,
    ) -> PassStats:
        asked = list(requests)
        trouble = self._trouble(len(self.sent))
        for place, request in enumerate(asked):
            if place < trouble.failed:
                sink(Failure(request.number, "refused"))
                continue
            most = {**sampling, **(request.sampling or {})}.get("max_tokens", 16) or 32
            tokens = [request.number] * (most - (place >= len(asked) - trouble.cut_short))
            at = float(-place if trouble.admitted_backwards else place)
            samples = {**sampling, **(request.sampling or {})}.get("n", 1)
            sink(Output(request.number, (Completion(tokens, "text", "length"),) * samples, 0, at, at))
        self.sent.append([request.number for request in asked])
        self.salts.append({request.cache_salt for request in asked})
        steps = -(-len(asked) // BATCH) * 16
        return PassStats(
            wall_s=(1 + 0.001 * len(self.sent)) * trouble.wall,
            step_ms=np.full(steps, STEP_MS, np.float32),
            running=np.full(steps, BATCH, np.int32),
            waiting=np.zeros(steps, np.int32),
            preempted=0,
            prefix_queries=0,
            prefix_hits=0,
            steal=trouble.steal,
            accelerator={"throttled": trouble.throttled},
        )

    def _trouble(self, number: int) -> Trouble:
        return self.troubles.get(number, Trouble())


WORDS = {
    "maths": "sum of prime numbers and roots",
    "code": "write a function that sorts lists",
    "law": "the tenant shall pay rent monthly",
}


def prompts_of(labels: list[str], tokens: int = 20, samplings: list[Any] | None = None) -> TokenizedPrompts:
    """A prompt per label, of words that its label shares; ids run against the file's order."""
    size = len(labels)
    texts = [f"{WORDS[label]} {i}" for i, label in enumerate(labels)]
    return TokenizedPrompts(
        ids=[f"p{size - i:05d}" for i in range(size)],
        lines=np.arange(1, size + 1),
        labels=list(labels),
        samplings=samplings or [None] * size,
        references=[None] * size,
        rendered=texts,
        tokens=np.arange(size * tokens, dtype=np.int32),
        offsets=np.arange(size + 1) * tokens,
    )


def mixed(size: int) -> list[str]:
    """Labels as a shuffled file has them."""
    return np.random.default_rng(0).permutation(grouped(size)).tolist()


def grouped(size: int) -> list[str]:
    """Labels as a file sorted by domain has them."""
    return [list(WORDS)[i * len(WORDS) // size] for i in range(size)]
