"""vLLM's scheduler and a step's experts the slow way: step by step, token by token, with lists and sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from orderproof.routing.experts import BitSets, bit_sets
from orderproof.routing.replay import Load

LAYERS, EXPERTS, TOP_K = 3, 70, 4  # two words of bits


def tokens_of(number: int, part: int, tokens: int) -> np.ndarray:
    """Experts of a request's tokens, [tokens, LAYERS, TOP_K]: part 0 for its prompt, 1 for what it generates."""
    noise = np.random.default_rng([number, part]).random((100, LAYERS, EXPERTS))[:tokens]
    return np.argsort(noise, axis=-1)[..., :TOP_K]


class RandomRoutes:
    """A source whose every request has routes of its own. `lengths`: what some requests really generated."""

    layers, experts = LAYERS, EXPERTS

    def __init__(self, lengths: dict[int, int] | None = None) -> None:
        self.lengths = lengths or {}

    def generated(self, number: int) -> int | None:
        return self.lengths.get(number)

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


def simulate(loads: list[Load], max_num_seqs: int, max_num_batched_tokens: int) -> list[Step]:
    """Every step, as the scheduler's source has it: first who runs, in the order of admission, then who waits."""
    waiting, running, steps = list(loads), [], []
    read = {load.number: 0 for load in loads}
    made = {load.number: 0 for load in loads}
    while waiting or running:
        step, budget = Step(), max_num_batched_tokens
        candidates = [(load, False) for load in running]
        while candidates or (waiting and budget and len(running) < max_num_seqs):
            if candidates:
                load, new = candidates.pop(0)
            else:
                load, new = waiting.pop(0), True
                running.append(load)
            if new:
                step.admitted.append(load.number)
            if read[load.number] < load.prompt_tokens:
                tokens = min(budget, load.prompt_tokens - read[load.number])
                chosen = tokens_of(load.number, 0, load.prompt_tokens)[read[load.number] :][:tokens]
                read[load.number] += tokens
                step.prefill_tokens += tokens
                made[load.number] += read[load.number] == load.prompt_tokens
            else:
                tokens = 1
                chosen = tokens_of(load.number, 1, load.generated)[made[load.number] - 1 :][:1]
                made[load.number] += 1
            budget -= tokens
            step.running.append(load.number)
            for row in chosen:
                for layer in range(LAYERS):
                    step.touched[layer] |= set(row[layer].tolist())
        step.ended = [load.number for load in running if made[load.number] == load.generated]
        running = [load for load in running if made[load.number] < load.generated]
        steps.append(step)
    return steps


batches = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=14).map(
    lambda sizes: [Load(number, prompt, generated) for number, (prompt, generated) in enumerate(sizes)]
)
windows = st.integers(1, 5).flatmap(lambda seqs: st.tuples(st.just(seqs), st.integers(seqs, 20)))
