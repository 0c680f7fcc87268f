"""vLLM's scheduler and a step's experts the slow way: step by step, token by token, with lists and sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from orderproof.routing.experts import BitSets, bit_sets
from orderproof.routing.replay import SimRequest

LAYERS, EXPERTS, TOP_K = 3, 70, 4  # two words of bits


def tokens_of(number: int, part: int, tokens: int) -> np.ndarray:
    """Experts of a request's tokens, [tokens, LAYERS, TOP_K]: part 0 for its prompt, 1 for what it generates."""
    noise = np.random.default_rng([number, part]).random((100, LAYERS, EXPERTS))[:tokens]
    return np.argsort(noise, axis=-1)[..., :TOP_K]


class RandomRoutes:
    """A source in which each request has its own random routes."""

    layers, experts = LAYERS, EXPERTS

    def prefill(self, number: int, start: int, stop: int) -> BitSets:
        union: BitSets = np.bitwise_or.reduce(bit_sets(tokens_of(number, 0, stop)[start:], EXPERTS), axis=0)
        return union

    def decode(self, number: int, tokens: int, sample: int = 0) -> BitSets:
        return bit_sets(tokens_of(number, 1, tokens), EXPERTS)


@dataclass
class Step:
    """What one step did."""

    running: list[int] = field(default_factory=list)
    prefill_tokens: int = 0
    admitted: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    touched: list[set[int]] = field(default_factory=lambda: [set() for _ in range(LAYERS)])

    def experts(self, owner: Callable[[int], int] = lambda expert: 0) -> int:
        """Σ over layers of the distinct experts on the device that has most."""
        total = 0
        for layer in self.touched:
            held: dict[int, int] = {}
            for expert in layer:
                held[owner(expert)] = held.get(owner(expert), 0) + 1
            total += max(held.values())
        return total


def simulate(requests: list[SimRequest], max_num_seqs: int, max_num_batched_tokens: int) -> list[Step]:
    """Every step, as the scheduler's source has it: first who runs, in the order of admission, then who waits."""
    waiting, running, steps = list(requests), [], []
    read = {request.number: 0 for request in requests}
    generated = {request.number: 0 for request in requests}
    while waiting or running:
        step, budget = Step(), max_num_batched_tokens
        candidates = [(request, False) for request in running]
        while candidates or (waiting and budget and len(running) < max_num_seqs):
            if candidates:
                request, new = candidates.pop(0)
            else:
                request, new = waiting.pop(0), True
                running.append(request)
            if new:
                step.admitted.append(request.number)
            if read[request.number] < request.prompt_tokens:
                tokens = min(budget, request.prompt_tokens - read[request.number])
                chosen = tokens_of(request.number, 0, request.prompt_tokens)[read[request.number] :][:tokens]
                read[request.number] += tokens
                step.prefill_tokens += tokens
                generated[request.number] += read[request.number] == request.prompt_tokens
            else:
                tokens = 1
                chosen = tokens_of(request.number, 1, request.generated)[generated[request.number] - 1 :][:1]
                generated[request.number] += 1
            budget -= tokens
            step.running.append(request.number)
            for row in chosen:
                for layer in range(LAYERS):
                    step.touched[layer] |= set(row[layer].tolist())
        step.ended = [request.number for request in running if generated[request.number] == request.generated]
        running = [request for request in running if generated[request.number] < request.generated]
        steps.append(step)
    return steps


batches = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=14).map(
    lambda sizes: [SimRequest(number, prompt, generated) for number, (prompt, generated) in enumerate(sizes)]
)
windows = st.integers(1, 5).flatmap(lambda seqs: st.tuples(st.just(seqs), st.integers(seqs, 20)))
