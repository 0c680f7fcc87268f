"""An engine in memory whose routing can be captured: every request gets random experts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from orderproof.capture.capture import Captured, Sample, capture
from orderproof.engines.protocol import Completion, EngineError, EngineInfo, Failure, Output, Request
from orderproof.engines.routing_engine import Routed
from orderproof.job.model import ModelFacts, MoeFacts
from orderproof.job.spec import Job
from tests.support.fake_engine import mixed, prompts_of

LAYERS, EXPERTS, TOP_K = 2, 16, 4
PROMPT_TOKENS, GENERATED_TOKENS = 20, 6
MODEL = ModelFacts("models/m", "5f0c2a9e", "Qwen3MoeForCausalLM", 512, MoeFacts(EXPERTS, TOP_K, LAYERS, 1), toy=True)
MD5 = "d41d8cd98f00b204e9800998ecf8427e"


class CapturingEngine:
    """Gives every request random experts, except those to refuse, to lose, to leave unanswered or to die at."""

    def __init__(self, refuse: int = -1, lose: int = -1, die: int = -1, silent: int = -1, layers: int = LAYERS) -> None:
        self.refuse, self.lose, self.die, self.silent, self.layers = refuse, lose, die, silent, layers
        self.samplings: list[dict[str, Any]] = []
        self.info = EngineInfo(1.0, {"vllm": "0"}, {"device_type": "cpu"}, {"max_num_seqs": 8, "mode": "eager"})

    def __enter__(self) -> CapturingEngine:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def capture(
        self,
        requests: Iterable[Request],
        sampling: Mapping[str, Any],
        sink: Callable[[Output | Failure], None],
        take: Callable[[Routed], None],
    ) -> Any:
        requests = list(requests)
        self.samplings = [{**sampling, **(request.sampling or {})} for request in requests]
        random = np.random.default_rng(0)
        for request in requests:
            if request.number == self.die:
                raise EngineError("the engine's process was killed by SIGKILL")
            if request.number == self.refuse:
                sink(Failure(request.number, "too long"))
                continue
            if request.number == self.silent:
                continue
            keys = random.random((PROMPT_TOKENS + GENERATED_TOKENS - 1, self.layers, EXPERTS))
            experts = np.argsort(keys)[..., :TOP_K].astype(np.uint8)
            lost = request.number == self.lose
            take(Routed(request.number, None if lost else experts, "it was preempted" if lost else ""))
            sink(Output(request.number, (Completion([1] * GENERATED_TOKENS, "text", "length"),), 0, 0.0, 0.0))

        class Done:
            wall_s = 2.0

        return Done()


def make_sample(size: int = 30) -> Sample:
    """Every second prompt of a file."""
    return Sample(prompts_of(mixed(size)), 2 * size, 0, MD5)


def capture_sample(job: Job, **faults: int) -> Captured:
    """Capture that sample. `faults`: as `CapturingEngine` takes them."""
    engine: Any = CapturingEngine(**faults)
    return capture(job, MODEL, make_sample(), engine)
