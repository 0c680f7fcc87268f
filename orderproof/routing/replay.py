"""Replay: what each step of a batch would run and read, from the order of sending and the routes alone.

In: requests' lengths in the order of sending, and a `RouteSource`. Out: per step its sequences, the prompt tokens it
reads, and the distinct experts it touches; which requests begin and end in it. Knows nothing of times or engines.

Works request by request: the bit sets of a request's tokens are OR-ed at once into the union of each step it stays for.
Steps that no later request can join are handed over. Memory follows the sequences that run, never the requests.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from orderproof.routing.experts import WORD_BITS, BitSets, words
from orderproof.routing.route_source import RouteSource
from orderproof.routing.scheduler import Residency, Window

QUEUED_BATCHES = 2  # what the worker keeps in flight
LOT_STEPS = 512  # handed over together: numpy's calls cost more than a small model's step


@dataclass(frozen=True)
class Load:
    """One request, as far as a replay needs it."""

    number: int
    prompt_tokens: int
    generated: int
    sample: int = 0  # which of its prompt's samples it is: each takes a place of the batch


@dataclass(frozen=True)
class StepChunk:
    """Some successive steps."""

    first: int  # number of the first one
    running: NDArray[np.int32]  # [steps] sequences
    waiting: NDArray[np.int32]  # [steps] in the engine's queue
    prefill_tokens: NDArray[np.int32]  # [steps] prompt tokens read
    experts: NDArray[np.int64]  # [steps] Σ over layers of the distinct experts, on the device that has most of them
    admitted: tuple[tuple[int, int], ...]  # (step, request's number) in the order of admission
    ended: tuple[tuple[int, int], ...]  # (step of its last token, request's number) in the order of steps


def replay(
    loads: Iterable[Load], source: RouteSource, max_num_seqs: int, max_num_batched_tokens: int, devices: int = 1
) -> Iterator[StepChunk]:
    """Replay a batch in the given order.

    Args:
        devices: over which the experts are spread in equal contiguous parts, as vLLM does with expert parallelism.
    """
    window, steps = Window(max_num_seqs, max_num_batched_tokens), _OpenSteps(source, devices, max_num_seqs)
    for load, queued in _with_queue(loads, QUEUED_BATCHES * max_num_seqs):
        stay = window.admit(load.prompt_tokens, load.generated)
        if stay.admitted - steps.first >= LOT_STEPS:
            yield steps.close(stay.admitted)
        steps.add(load, stay, queued)
    if steps.end > steps.first:
        yield steps.close(steps.end)


def device_masks(experts: int, devices: int) -> BitSets:
    """uint64[devices, words]: the experts of each device, contiguous, the first ones taking what is left over."""
    device = np.repeat(np.arange(devices), [len(part) for part in np.array_split(np.arange(experts), devices)])
    masks = np.zeros((devices, words(experts)), np.uint64)
    for expert, owner in enumerate(device.tolist()):
        masks[owner, expert // WORD_BITS] |= np.uint64(1 << expert % WORD_BITS)
    return masks


def _with_queue(loads: Iterable[Load], limit: int) -> Iterator[tuple[Load, int]]:
    """Each load, and how many are known behind it."""
    coming = iter(loads)
    known = deque(islice(coming, limit))
    while known:
        load = known.popleft()
        known.extend(islice(coming, 1))
        yield load, len(known)


class _OpenSteps:
    """The steps that later requests may still join."""

    def __init__(self, source: RouteSource, devices: int, max_num_seqs: int) -> None:
        self._source, self._limit = source, QUEUED_BATCHES * max_num_seqs
        self._masks = device_masks(source.experts, devices)
        self.first = self.end = 0
        self._unions = np.zeros((2 * LOT_STEPS, source.layers, words(source.experts)), np.uint64)
        self._counts = np.zeros((2 * LOT_STEPS, 3), np.int32)  # running, prompt tokens, queued behind (-1: as before)
        self._counts[:, 2] = -1
        self._admitted: list[tuple[int, int]] = []
        self._ends: list[tuple[int, int, int]] = []  # heap: step, place in the order of admission, number
        self._requests = 0

    def add(self, load: Load, stay: Residency, queued: int) -> None:
        """Let a request run. `stay` begins at or after `first`, and not before the one added last."""
        self._reach(stay.end + 1)
        offset = self.first
        for step, start, stop in stay.chunks:
            self._unions[step - offset] |= self._source.prefill(load.number, start, stop)
            self._counts[step - offset, 1] += stop - start
        if stay.end >= stay.decode:
            sets = self._source.decode(load.number, stay.end + 1 - stay.decode, load.sample)
            self._unions[stay.decode - offset : stay.end + 1 - offset] |= sets
        self._counts[stay.admitted - offset : stay.end + 1 - offset, 0] += 1
        self._counts[stay.admitted - offset, 2] = queued
        self._admitted.append((stay.admitted, load.number))
        heapq.heappush(self._ends, (stay.end, self._requests, load.number))
        self._requests += 1

    def close(self, before: int) -> StepChunk:
        """Hand over the steps before a step, and forget them."""
        steps = before - self.first
        running, prefill_tokens, queued = self._counts[:steps].T.copy()
        queued = queued[
            np.maximum.accumulate(np.where(queued >= 0, np.arange(steps), 0))
        ]  # a lot begins as one is added
        ended = []
        while self._ends and self._ends[0][0] < before:
            step, _, number = heapq.heappop(self._ends)
            ended.append((step, number))
        admitted = [pair for pair in self._admitted if pair[0] < before]
        lot = StepChunk(
            self.first,
            running,
            np.minimum(queued, self._limit - running).astype(np.int32),
            prefill_tokens,
            self._experts(steps),
            tuple(admitted),
            tuple(ended),
        )
        self._admitted = self._admitted[len(admitted) :]
        self._forget(steps)
        return lot

    def _experts(self, steps: int) -> NDArray[np.int64]:
        unions = self._unions[:steps]
        if len(self._masks) == 1:
            counted: NDArray[np.int64] = np.bitwise_count(unions).sum(axis=(1, 2), dtype=np.int64)
            return counted
        held = np.bitwise_count(unions[:, :, None, :] & self._masks).sum(axis=-1, dtype=np.int64)
        busiest: NDArray[np.int64] = held.max(axis=-1).sum(axis=-1)
        return busiest

    def _forget(self, steps: int) -> None:
        left = self.end - self.first - steps
        for values, empty in ((self._unions, 0), (self._counts, (0, 0, -1))):
            values[:left] = values[steps : steps + left]
            values[left : left + steps] = empty
        self.first += steps

    def _reach(self, end: int) -> None:
        """Have room for every step before `end`."""
        self.end = max(self.end, end)
        missing = self.end - self.first - len(self._counts)
        if missing > 0:
            more = max(missing, len(self._counts))
            self._unions = np.concatenate([self._unions, np.zeros((more, *self._unions.shape[1:]), np.uint64)])
            self._counts = np.concatenate([self._counts, np.tile(np.array([0, 0, -1], np.int32), (more, 1))])
