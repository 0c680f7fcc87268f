"""Where a replay takes the experts of a request's tokens from.

In: captured routes, and which captured prompt stands for each request. Out: bit sets per token and layer. Knows nothing
of steps, times or engines.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from orderproof.routing.errors import RoutingError
from orderproof.routing.experts import BitSets, bit_sets
from orderproof.routing.routes import Routes

CACHE_BYTES = 256 << 20  # of bit sets
ROWS_AT_ONCE = 1024  # of prompts compared with all captured ones
FAR = 7919  # rows between the beginnings of neighbouring requests with one stand-in; a prime
SAMPLES_APART = 5003  # rows between those of neighbouring samples of one prompt; another prime
NEAREST = 8  # captured prompts of which one is drawn for a prompt that was not captured


class RouteSource(Protocol):
    """The experts of each request, by the number that the request has in its pass."""

    @property
    def layers(self) -> int: ...

    @property
    def experts(self) -> int: ...

    def generated(self, number: int) -> int | None:
        """How many tokens the request really generated; None if that is not known."""
        ...

    def prefill(self, number: int, start: int, stop: int) -> BitSets:
        """uint64[layers, words]: the union over the prompt's tokens start … stop − 1."""
        ...

    def decode(self, number: int, tokens: int, sample: int = 0) -> BitSets:
        """uint64[tokens, layers, words]: of the steps that make the second and every later token of a sample."""
        ...


class CapturedRoutes:
    """Captured routes as a source.

    A request whose prompt was not captured, or which asks for more tokens than were, goes round its captured rows. It
    begins at a row of its own, so that two requests with one stand-in are not alike token by token; so do further
    samples of a prompt, of which one was captured.
    """

    def __init__(self, routes: Routes, stand_ins: NDArray[np.int64], own: NDArray[np.bool_] | None = None) -> None:
        """`stand_ins[number]`: a captured prompt's place in `routes`; `own[number]`: it is the request's own prompt."""
        self._routes, self._stand_ins = routes, stand_ins
        self._own = np.ones(len(stand_ins), np.bool_) if own is None else own
        self._kept: OrderedDict[int, tuple[BitSets, int]] = OrderedDict()
        self._kept_bytes = 0
        self.layers, self.experts = routes.record.layers, routes.record.experts

    def stand_in(self, number: int) -> int:
        """Place in the routes of the prompt whose routes a request has."""
        return int(self._stand_ins[number])

    def generated(self, number: int) -> int | None:
        return int(self._routes.decode_tokens[self.stand_in(number)]) + 1 if self._own[number] else None

    def prefill(self, number: int, start: int, stop: int) -> BitSets:
        sets, read = self._sets(self.stand_in(number))
        union: BitSets = np.bitwise_or.reduce(self._rows(sets[:read], self._first(number), start, stop), axis=0)
        return union

    def decode(self, number: int, tokens: int, sample: int = 0) -> BitSets:
        sets, read = self._sets(self.stand_in(number))
        rows = sets[read:] if len(sets) > read else sets[-1:]  # one generated token has no row: like the prompt's last
        return self._rows(rows, self._first(number) + sample * SAMPLES_APART, 0, tokens)

    def _first(self, number: int) -> int:
        return 0 if self._own[number] else number * FAR

    @staticmethod
    def _rows(rows: BitSets, first: int, start: int, stop: int) -> BitSets:
        if not first and stop <= len(rows):
            return rows[start:stop]
        around: BitSets = rows[(first + np.arange(start, stop)) % len(rows)]
        return around

    def _sets(self, place: int) -> tuple[BitSets, int]:
        """uint64[tokens, layers, words] of a captured prompt, and how many of its tokens are the prompt's."""
        if place in self._kept:
            self._kept.move_to_end(place)
            return self._kept[place]
        prompt = self._routes[place]
        self._kept[place] = bit_sets(prompt.experts, self.experts), prompt.prompt_tokens
        self._kept_bytes += self._kept[place][0].nbytes
        while self._kept_bytes > CACHE_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1][0].nbytes
        return self._kept[place]


def captured_routes(
    routes: Routes, ids: Sequence[str], features: NDArray[np.float32] | None = None, seed: int = 0
) -> CapturedRoutes:
    """A source for prompts of which some were captured.

    Args:
        ids: of all prompts, by the number of their request.
        features: float32[prompts, features] of any signal: a prompt that was not captured takes the routes of one of
            the NEAREST captured ones by cosine, drawn at random; without features, of any captured one.

    Raises:
        RoutingError: none of the prompts was captured.
    """
    places = np.array([routes.place.get(prompt_id, -1) for prompt_id in ids], np.int64)
    own = places >= 0
    if not own.any():
        raise RoutingError(f"{routes.path} holds none of these {len(ids)} prompts: capture a sample of them first")
    others, generator = np.flatnonzero(~own), np.random.default_rng(seed)
    if features is None:
        places[others] = generator.choice(places[own], len(others))
    else:
        near = _nearest(features[others], features[own])
        drawn = near[np.arange(len(others)), generator.integers(0, near.shape[1], len(others))]
        places[others] = places[own][drawn]
    return CapturedRoutes(routes, places, own)


def _nearest(these: NDArray[np.float32], those: NDArray[np.float32]) -> NDArray[np.int64]:
    """int64[these, up to NEAREST]: rows of `those` with the largest cosine."""
    unit = those / np.maximum(np.linalg.norm(those, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    count = min(NEAREST, len(those))
    near = np.empty((len(these), count), np.int64)
    for start in range(0, len(these), ROWS_AT_ONCE):
        cosine = these[start : start + ROWS_AT_ONCE] @ unit.T  # the length of a row of `these` ranks nothing
        near[start : start + ROWS_AT_ONCE] = np.argpartition(-cosine, count - 1, axis=1)[:, :count]
    return near
