"""Replay: what each step of a batch runs and reads, from the order of sending and the routes alone.

It works request by request: the bit sets of a request's tokens are OR-ed into the union of each step that it runs in.
Steps that no later request can join are returned. Memory follows the sequences that run at once, not the requests.
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
from orderproof.routing.scheduler import Residency, Scheduler

QUEUED_BATCHES = 2  # batches of requests that the worker keeps in flight
CHUNK_STEPS = 512  # steps returned together: numpy's calls cost more than a small model's step


@dataclass(frozen=True)
class SimRequest:
    """One request, as far as a replay needs it."""

    number: int
    prompt_tokens: int
    generated: int
    sample: int = 0  # which of its prompt's samples: each sample takes a place of the batch


@dataclass(frozen=True)
class StepChunk:
    """Some successive steps."""

    first: int  # number of the first step
    running: NDArray[np.int32]  # [steps] sequences
    waiting: NDArray[np.int32]  # [steps] in the engine's queue
    prefill_tokens: NDArray[np.int32]  # [steps] prompt tokens read
    experts: NDArray[np.int64]  # [steps] Σ over layers of the distinct experts, on the device that has most of them
    admitted: tuple[tuple[int, int], ...]  # (step, request's number) in the order of admission
    ended: tuple[tuple[int, int], ...]  # (step of its last token, request's number) in the order of steps


def replay(
    requests: Iterable[SimRequest],
    source: RouteSource,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    devices: int = 1,
) -> Iterator[StepChunk]:
    """Replay a batch in the given order.

    Args:
        devices: over which the experts are spread in equal contiguous parts, as vLLM does with expert parallelism.
    """
    scheduler, steps = Scheduler(max_num_seqs, max_num_batched_tokens), _OpenSteps(source, devices, max_num_seqs)
    for request, queued in _with_queue(requests, QUEUED_BATCHES * max_num_seqs):
        residency = scheduler.admit(request.prompt_tokens, request.generated)
        if residency.admitted - steps.first >= CHUNK_STEPS:
            yield steps.close(residency.admitted)
        steps.add(request, residency, queued)
    if steps.end > steps.first:
        yield steps.close(steps.end)


def device_masks(experts: int, devices: int) -> BitSets:
    """uint64[devices, words]: the experts of each device, contiguous; the first devices take the remainder."""
    device = np.repeat(np.arange(devices), [len(part) for part in np.array_split(np.arange(experts), devices)])
    masks = np.zeros((devices, words(experts)), np.uint64)
    for expert, owner in enumerate(device.tolist()):
        masks[owner, expert // WORD_BITS] |= np.uint64(1 << expert % WORD_BITS)
    return masks


def _with_queue(requests: Iterable[SimRequest], limit: int) -> Iterator[tuple[SimRequest, int]]:
    """Each request, and how many are queued behind it."""
    remaining = iter(requests)
    queue = deque(islice(remaining, limit))
    while queue:
        request = queue.popleft()
        queue.extend(islice(remaining, 1))
        yield request, len(queue)


class _OpenSteps:
    """The steps that later requests may still join."""

    def __init__(self, source: RouteSource, devices: int, max_num_seqs: int) -> None:
        self._source, self._limit = source, QUEUED_BATCHES * max_num_seqs
        self._masks = device_masks(source.experts, devices)
        self.first = self.end = 0
        self._unions = np.zeros((2 * CHUNK_STEPS, source.layers, words(source.experts)), np.uint64)
        self._counts = np.zeros((2 * CHUNK_STEPS, 3), np.int32)  # running, prompt tokens, queued (-1: as before)
        self._counts[:, 2] = -1
        self._admitted: list[tuple[int, int]] = []
        self._ends: list[tuple[int, int, int]] = []  # heap: step, place in the order of admission, number
        self._requests = 0

    def add(self, request: SimRequest, residency: Residency, queued: int) -> None:
        """Let a request run. It begins at or after `first`, and not before the request added last."""
        self._reach(residency.end + 1)
        offset = self.first
        admitted, decode, end = residency.admitted, residency.decode, residency.end
        for step, start, stop in residency.chunks:
            self._unions[step - offset] |= self._source.prefill(request.number, start, stop)
            self._counts[step - offset, 1] += stop - start
        if end >= decode:
            sets = self._source.decode(request.number, end + 1 - decode, request.sample)
            self._unions[decode - offset : end + 1 - offset] |= sets
        self._counts[admitted - offset : end + 1 - offset, 0] += 1
        self._counts[admitted - offset, 2] = queued
        self._admitted.append((admitted, request.number))
        heapq.heappush(self._ends, (end, self._requests, request.number))
        self._requests += 1

    def close(self, before: int) -> StepChunk:
        """Return the steps before a step, and forget them."""
        steps = before - self.first
        running, prefill_tokens, queued = self._counts[:steps].T.copy()
        # A chunk begins at a step that admits a request, so its first count is known.
        queued = queued[np.maximum.accumulate(np.where(queued >= 0, np.arange(steps), 0))]
        ended = []
        while self._ends and self._ends[0][0] < before:
            step, _, number = heapq.heappop(self._ends)
            ended.append((step, number))
        admitted = [pair for pair in self._admitted if pair[0] < before]
        chunk = StepChunk(
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
        return chunk

    def _experts(self, steps: int) -> NDArray[np.int64]:
        unions = self._unions[:steps]
        if len(self._masks) == 1:
            counts: NDArray[np.int64] = np.bitwise_count(unions).sum(axis=(1, 2), dtype=np.int64)
            return counts
        by_device = np.bitwise_count(unions[:, :, None, :] & self._masks).sum(axis=-1, dtype=np.int64)
        busiest: NDArray[np.int64] = by_device.max(axis=-1).sum(axis=-1)
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
