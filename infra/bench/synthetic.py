"""Routing drawn at random to published statistics: a `RouteSource` for models that are not available here.

It holds a pool of drawn tokens, and nothing per request.

The model: in each layer and domain an expert e has the weight exp(common · g_e + own · z_e), g and z standard normal,
g the same for all domains. A token takes top_k experts without replacement, with chances in proportion to the weights
(the first of a race of exponential times); tokens are independent. Log-normal weights are skewed much as Zipf's are;
`common` says how much domains share their favourite experts, `own` how far they are apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orderproof.routing.experts import BitSets, ExpertIds, bit_sets, words

POOL_TOKENS = 2048  # drawn per domain and layer; a request's tokens pick among them, layer by layer


@dataclass(frozen=True)
class RoutingShape:
    """A model's routing as the published statistics fix it."""

    layers: int
    experts: int  # per layer
    top_k: int
    domains: int
    common: float  # spread of the log weights that all domains share
    own: float  # spread of those that are each domain's own


class SyntheticRoutes:
    """Routes drawn on demand: a request has the same routes each time they are read."""

    def __init__(self, shape: RoutingShape, domain: Callable[[int], int], seed: int, pool: int = POOL_TOKENS) -> None:
        """`domain` gives each request's domain, 0 … domains − 1, by its number."""
        self.shape, self.layers, self.experts = shape, shape.layers, shape.experts
        self._domain, self._seed, self._pool = domain, seed, pool
        chosen = draw_tokens(shape, pool, seed)
        sets = bit_sets(chosen, shape.experts)  # [domains, pool, layers, words]
        self._sets: BitSets = np.ascontiguousarray(sets.transpose(0, 2, 1, 3)).reshape(
            shape.domains, shape.layers * pool, words(shape.experts)
        )
        self._layer_starts = np.arange(shape.layers, dtype=np.intp) * pool

    def prefill(self, number: int, start: int, stop: int) -> BitSets:
        union: BitSets = np.bitwise_or.reduce(self._drawn(number, stop - start, 1 + start), axis=0)
        return union

    def decode(self, number: int, tokens: int, sample: int = 0) -> BitSets:
        return self._drawn(number, tokens, 0, *([sample] if sample else []))

    def _drawn(self, number: int, tokens: int, *stream: int) -> BitSets:
        generator = np.random.default_rng([self._seed, number, *stream])
        picked = generator.integers(0, self._pool, (tokens, self.layers), np.uint16) + self._layer_starts
        rows: BitSets = self._sets[self._domain(number)].take(picked, axis=0)
        return rows


def draw_tokens(shape: RoutingShape, tokens: int, seed: int) -> ExpertIds:
    """Independent tokens of every domain: [domains, tokens, layers, top_k] expert numbers, distinct in a token."""
    generator = np.random.default_rng(seed)
    common = shape.common * generator.standard_normal((shape.layers, shape.experts))
    own = shape.own * generator.standard_normal((shape.domains, shape.layers, shape.experts))
    weights = np.exp(common + own).astype(np.float32)
    dtype = np.uint8 if shape.experts <= 256 else np.uint16
    chosen = np.empty((shape.domains, tokens, shape.layers, shape.top_k), dtype)
    for domain in range(shape.domains):
        for layer in range(shape.layers):
            times = generator.standard_exponential((tokens, shape.experts), np.float32) / weights[domain, layer]
            ranked = np.argpartition(times, shape.top_k - 1, axis=1)
            chosen[domain, :, layer] = ranked[:, : shape.top_k]
    return chosen


@dataclass(frozen=True)
class RoutingStatistics:
    """What studies publish of a model's routing; averages over layers."""

    favourite_share: NDArray[np.float64]  # [domains] of its traffic that a domain sends to its favourite quarter
    mixed: float  # distinct experts per layer of a batch of all domains
    single: NDArray[np.float64]  # [domains] of a batch of one domain

    @property
    def fewer(self) -> float:
        """By how much a batch of one domain touches fewer experts, on average over domains."""
        return 1 - float(self.single.mean()) / self.mixed


def statistics_of(shape: RoutingShape, seed: int, batch: int, tokens: int = POOL_TOKENS) -> RoutingStatistics:
    """The statistics of drawn tokens, in expectation over batches.

    A batch of b independent tokens leaves an expert untouched with the chance (1 − p)^b; p: its chance in one token.
    """
    chosen = draw_tokens(shape, tokens, seed)
    chance = np.zeros((shape.domains, shape.layers, shape.experts))
    for domain in range(shape.domains):
        for layer in range(shape.layers):
            counts = np.bincount(chosen[domain, :, layer].ravel(), minlength=shape.experts)
            chance[domain, layer] = counts / tokens
    favourites = np.sort(chance, axis=-1)[..., -(shape.experts // 4) :].sum(axis=-1) / shape.top_k
    return RoutingStatistics(
        favourites.mean(axis=-1), _touched(chance.mean(axis=0), batch), _touched_each(chance, batch)
    )


def _touched(chance: NDArray[np.float64], batch: int) -> float:
    return float((1 - (1 - chance) ** batch).sum(axis=-1).mean())


def _touched_each(chance: NDArray[np.float64], batch: int) -> NDArray[np.float64]:
    return np.array([_touched(domain, batch) for domain in chance])
