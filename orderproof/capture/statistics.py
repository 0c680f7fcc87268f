"""Statistics of captured routes: how many experts a batch reads, and how much a group concentrates on few experts.

A `RoutingTable` is the published study's own table, for these prompts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.routing.experts import bit_sets, distinct
from orderproof.routing.routes import PromptRoutes

BATCHES = (8, 16, 32, 64, 128)
DRAWS = 400  # batches of each size: the standard error of their mean is then far below 1 %
TOKENS_PER_PROMPT = 16  # decode tokens kept to draw batches from: bounds the memory
FAVOURITES = 4  # a group's favourite experts of a layer are its busiest 1 / FAVOURITES


@dataclass(frozen=True)
class Touched:
    """Distinct experts per layer that a batch's decode step reads: means over DRAWS batches."""

    batch: int
    mixed: float | None  # any prompts; None: fewer were captured
    grouped: float | None  # one group's prompts; None: no group has that many
    mixed_by_layer: tuple[float, ...]
    grouped_by_layer: tuple[float, ...]
    groups: int  # that have that many prompts

    @property
    def saved(self) -> float | None:
        """Share of the mixed batch's experts that a grouped batch does not read."""
        return 1 - self.grouped / self.mixed if self.mixed and self.grouped else None


@dataclass(frozen=True)
class Group:
    """How much the prompts of one group concentrate on their favourite quarter of experts."""

    name: str
    prompts: int
    favourite_share: float | None  # of its decode traffic, mean over layers; None: fewer than two prompts


@dataclass(frozen=True)
class RoutingTable:
    """The study's table."""

    layers: int
    experts: int
    top_k: int
    prompts: int  # that decoded
    kind: str  # label | cluster: what the groups are
    touched: tuple[Touched, ...]
    groups: tuple[Group, ...]
    favourite_share: float | None  # mean over the groups' decode tokens
    favourite_share_mixed: float | None  # the same for all prompts together, without groups

    def as_json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "saved": row.saved} for row in self.touched]
        table = {**asdict(self), "touched": rows, "groups": [asdict(group) for group in self.groups]}
        written: dict[str, Any] = json.loads(json.dumps(table))  # tuples are lists in JSON
        return written


def routing_table(
    routes: Iterable[PromptRoutes], group_of: Mapping[str, str], kind: str, shape: tuple[int, int, int], seed: int = 0
) -> RoutingTable:
    """Read all routes once and compute the table.

    Args:
        group_of: prompt id → its group, for all prompts of `routes`.
        kind: label or cluster.
        shape: layers, experts per layer, top_k.
        seed: draws the batches and the halves.
    """
    random = np.random.default_rng(seed)
    names = sorted(set(group_of.values()))
    tokens, members, traffic = _collect(routes, {name: k for k, name in enumerate(names)}, group_of, shape, random)
    sizes = np.bincount(members, minlength=len(names))
    shares, weights = _favourite_shares(traffic), traffic.sum(axis=(1, 2, 3))
    known = ~np.isnan(shares)
    return RoutingTable(
        *shape,
        prompts=len(tokens),
        kind=kind,
        touched=tuple(_touched(tokens, members, batch, shape[1], random) for batch in BATCHES),
        groups=tuple(
            Group(name, int(size), None if np.isnan(share) else float(share))
            for name, size, share in zip(names, sizes, shares, strict=True)
        ),
        favourite_share=float(np.average(shares[known], weights=weights[known])) if known.any() else None,
        favourite_share_mixed=_number(_favourite_shares(traffic.sum(axis=0, keepdims=True))[0]),
    )


def _collect(
    routes: Iterable[PromptRoutes],
    place: Mapping[str, int],
    group_of: Mapping[str, str],
    shape: tuple[int, int, int],
    random: np.random.Generator,
) -> tuple[list[NDArray[Any]], NDArray[np.int64], NDArray[np.int64]]:
    """Some decode tokens of every prompt that has any, the prompts' groups, and all decode traffic.

    Returns:
        Per prompt [tokens, layers, top_k]; int64[prompts]; int64[groups, 2 halves, layers, experts].
    """
    layers, experts, _ = shape
    tokens, members = [], []
    traffic = np.zeros((len(place), 2, layers * experts), np.int64)
    row = experts * np.arange(layers)[:, None]
    for prompt in routes:
        decode = prompt.decode
        if not len(decode):
            continue
        group = place[group_of[prompt.prompt_id]]
        counts = np.bincount((decode.astype(np.int64) + row).ravel(), minlength=layers * experts)
        traffic[group, random.integers(2)] += counts
        tokens.append(decode[random.permutation(len(decode))[:TOKENS_PER_PROMPT]])
        members.append(group)
    return tokens, np.array(members, np.int64), traffic.reshape(len(place), 2, layers, experts)


def _touched(
    tokens: Sequence[NDArray[Any]],
    members: NDArray[np.int64],
    batch: int,
    experts: int,
    random: np.random.Generator,
) -> Touched:
    """Draw batches of any prompts, and of one group's prompts, a group in proportion to its size."""
    sizes = np.bincount(members) if len(members) else np.zeros(0, np.int64)
    wide = np.flatnonzero(sizes >= batch)
    mixed = grouped = None
    if len(tokens) >= batch:
        mixed = _mean_distinct(tokens, (np.arange(len(tokens)) for _ in range(DRAWS)), batch, experts, random)
    if len(wide):
        picked = random.choice(wide, DRAWS, p=sizes[wide] / sizes[wide].sum())
        pools = (np.flatnonzero(members == group) for group in picked)
        grouped = _mean_distinct(tokens, pools, batch, experts, random)
    return Touched(
        batch=batch,
        mixed=None if mixed is None else float(mixed.mean()),
        grouped=None if grouped is None else float(grouped.mean()),
        mixed_by_layer=() if mixed is None else tuple(mixed.tolist()),
        grouped_by_layer=() if grouped is None else tuple(grouped.tolist()),
        groups=len(wide),
    )


def _mean_distinct(
    tokens: Sequence[NDArray[Any]],
    pools: Iterable[NDArray[np.int64]],
    batch: int,
    experts: int,
    random: np.random.Generator,
) -> NDArray[np.float64]:
    """float64[layers]: distinct experts of a batch with one token of each of its prompts; one batch from each pool."""
    counts = []
    for pool in pools:
        chosen = random.choice(pool, batch, replace=False).tolist()
        step = np.stack([tokens[prompt][random.integers(len(tokens[prompt]))] for prompt in chosen])
        counts.append(distinct(np.bitwise_or.reduce(bit_sets(step, experts), axis=0)))
    mean: NDArray[np.float64] = np.mean(counts, axis=0)
    return mean


def _favourite_shares(traffic: NDArray[np.int64]) -> NDArray[np.float64]:
    """Share of each group's traffic on its favourite quarter of each layer's experts, mean over layers.

    One half of a group's prompts selects the favourites and the other half's traffic is counted, both ways: a small
    group would otherwise seem to have favourites by chance.

    Args:
        traffic: int64[groups, 2 halves, layers, experts].

    Returns:
        float64[groups], nan where a half has no traffic.
    """
    count = max(1, traffic.shape[-1] // FAVOURITES)
    favourites = np.argsort(-traffic[:, ::-1], axis=-1, kind="stable")[..., :count]  # by the other half
    on_favourites = np.take_along_axis(traffic, favourites, axis=-1).sum(axis=(1, 3))
    total = traffic.sum(axis=(1, 3))
    whole = traffic.sum(axis=(2, 3)).min(axis=1) > 0
    shares = np.divide(on_favourites, total, out=np.zeros(total.shape), where=total > 0).mean(axis=-1)
    return np.where(whole, shares, np.nan)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
