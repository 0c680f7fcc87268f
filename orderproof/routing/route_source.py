"""Where a replay takes the experts of a request's tokens from: bit sets per token and layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from orderproof.routing.errors import RoutingError
from orderproof.routing.experts import BitSets, bit_sets
from orderproof.routing.routes import Routes

CACHE_BYTES = 256 << 20  # of bit sets
SAMPLE_OFFSET = 5003  # rows between the starts of neighbouring samples of one prompt; a prime


class RouteSource(Protocol):
    """The experts of each request, by the number that the request has in its pass."""

    @property
    def layers(self) -> int: ...

    @property
    def experts(self) -> int: ...

    def prefill(self, number: int, start: int, stop: int) -> BitSets:
        """uint64[layers, words]: the union over the prompt's tokens start … stop − 1."""
        ...

    def decode(self, number: int, tokens: int, sample: int = 0) -> BitSets:
        """uint64[tokens, layers, words]: of the steps that make the second and every later token of a sample."""
        ...


class CapturedRoutes:
    """Captured routes as a source.

    A request that asks for more tokens than were captured starts again at its first captured row. One sample of each
    prompt was captured; further samples start at other rows, so that they are not alike token by token.
    """

    def __init__(self, routes: Routes, places: NDArray[np.int64]) -> None:
        """`places[number]`: the place in `routes` of a request's prompt; −1: not captured, and never sent."""
        self._routes, self._places = routes, places
        self._sets: LRUCache[int, tuple[BitSets, int]] = LRUCache(CACHE_BYTES, _cached_bytes)
        self.layers, self.experts = routes.record.layers, routes.record.experts

    def generated(self, number: int) -> int:
        """Tokens that were generated when the request's prompt was captured."""
        return int(self._routes.decode_tokens[self._places[number]]) + 1

    def prefill(self, number: int, start: int, stop: int) -> BitSets:
        sets, prompt_tokens = self._sets_of(int(self._places[number]))
        union: BitSets = np.bitwise_or.reduce(_cycle(sets[:prompt_tokens], 0, start, stop), axis=0)
        return union

    def decode(self, number: int, tokens: int, sample: int = 0) -> BitSets:
        sets, prompt_tokens = self._sets_of(int(self._places[number]))
        # Where one token was generated it has no row: take the prompt's last one.
        rows = sets[prompt_tokens:] if len(sets) > prompt_tokens else sets[-1:]
        return _cycle(rows, sample * SAMPLE_OFFSET, 0, tokens)

    def _sets_of(self, place: int) -> tuple[BitSets, int]:
        """uint64[tokens, layers, words] of a captured prompt, and how many of its tokens are the prompt's."""
        entry = self._sets.get(place)
        if entry is None:
            prompt = self._routes[place]
            entry = self._sets[place] = bit_sets(prompt.experts, self.experts), prompt.prompt_tokens
        return entry


def _cached_bytes(entry: tuple[BitSets, int]) -> int:
    """A prompt larger than the cache is kept alone."""
    return min(CACHE_BYTES, entry[0].nbytes)


def _cycle(rows: BitSets, first: int, start: int, stop: int) -> BitSets:
    """Rows first + start … first + stop − 1, beginning again at the first row after the last."""
    if not first and stop <= len(rows):
        return rows[start:stop]
    cycled: BitSets = rows[(first + np.arange(start, stop)) % len(rows)]
    return cycled


def captured_routes(routes: Routes, ids: Sequence[str]) -> CapturedRoutes:
    """A source for prompts, of which those that are sent were captured.

    Args:
        ids: of all prompts, by the number of their request.

    Raises:
        RoutingError: none of the prompts was captured.
    """
    places = np.array([routes.place.get(prompt_id, -1) for prompt_id in ids], np.int64)
    if not (places >= 0).any():
        raise RoutingError(f"{routes.path} holds none of these {len(ids)} prompts: capture a sample of them first")
    return CapturedRoutes(routes, places)
