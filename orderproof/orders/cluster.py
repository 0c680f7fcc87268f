"""By what the prompts are about: clusters of a signal, chained so that similar clusters touch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.orders.clustering import chain, kmeans, nearest
from orderproof.orders.order import OrderError
from orderproof.orders.ranking import NOTHING, Ranking, WindowState
from orderproof.orders.view import PromptView
from orderproof.signals import registry
from orderproof.signals.registry import Places, Progress, Signal

FIT_PROMPTS = 20_000  # of more prompts, so many drawn at random tell where the clusters are
LEARNING_PROMPTS = 1024  # from which the clusters of windows are learned
PROMPTS_PER_CLUSTER = 8  # at least, on average, while they are learned


def rank(
    prompts: PromptView, spec: OrderSpec, progress: Progress | None = None, carried: WindowState = NOTHING
) -> Ranking:
    """K-means on the prompts' features; a prompt's rank is the place of its cluster in the chain.

    With fewer prompts than `spec.clusters` every prompt is a cluster, and the order is the chain itself. Windows learn
    their clusters from the first few: see `_learned`.

    Raises:
        OrderError: a prompt's features are not numbers.
        SignalError: the signal cannot be taken of these prompts.
    """
    parameters = {"clusters": spec.clusters, **registry.provenance(spec, prompts.served)}
    seeds = {"kmeans": spec.seed}
    if not len(prompts):
        return Ranking(np.zeros(0, np.int64), parameters, seeds, carried.arrays)
    signal = registry.load(spec, prompts.served)
    if spec.window is None:
        return Ranking(_clustered(signal, prompts, spec, progress), parameters, seeds)
    rows = registry.stacked(_features(signal, prompts, spec, range(len(prompts)), progress))
    centres, keeps, follows = _learned(rows, spec, carried)
    return Ranking(nearest(rows, centres), parameters, seeds, keeps, follows)


def most_clusters(prompts: int, window: int | None) -> int:
    """How many of the clusters that are asked for can be made of so many prompts."""
    if window is None:
        return min(prompts, FIT_PROMPTS)
    return max(1, min(prompts, LEARNING_PROMPTS + window) // PROMPTS_PER_CLUSTER)


def _clustered(signal: Signal, prompts: PromptView, spec: OrderSpec, progress: Progress | None) -> NDArray[np.int64]:
    """int64[N]: the place of each prompt's cluster in the chain.

    Of more than FIT_PROMPTS a sample is clustered and every prompt then goes to the nearest centre, one chunk after the
    other, so that time grows with the number of prompts and memory does not.
    """
    sample = _sample(len(prompts), spec.seed)
    rows = _features(signal, prompts, spec, sample, progress)
    members, centres = kmeans(registry.stacked(rows), min(spec.clusters, most_clusters(len(prompts), None)), spec.seed)
    if len(sample) < len(prompts):
        rows = _features(signal, prompts, spec, range(len(prompts)), progress)
        members = np.concatenate([nearest(chunk, centres) for chunk in rows])
    used, members = np.unique(members, return_inverse=True)  # a cluster of no prompts would be a link of nothing
    places = np.empty(len(used), np.int64)
    places[chain(centres[used])] = np.arange(len(used))
    return places[members]


def _learned(
    rows: Any, spec: OrderSpec, carried: WindowState
) -> tuple[NDArray[np.float32], dict[str, NDArray[Any]], int | None]:
    """The centres by which a window is grouped.

    They are fitted on all that came so far whenever that has doubled, until LEARNING_PROMPTS were seen. Then they stay:
    a window alone holds too few prompts of a kind to find the kinds. (Six domains, windows of 128, default embedding:
    among 16 neighbours the commonest label has 81 % where each window has its own clusters, 83 % with these, 84 % with
    the whole file's clusters or with true labels.) A kind that first comes later goes with the nearest one.

    Returns:
        float32[k, features]: centres in the chain's order; what the next window needs; the centre next to which the
        last window ended, where they were fitted anew.
    """
    arrays = dict(carried.arrays)
    if "centres" in arrays and "sample" not in arrays:
        return arrays["centres"], arrays, None
    seen = registry.stacked([*_unpacked(arrays), rows])
    learning = _packed(seen) if seen.shape[0] < LEARNING_PROMPTS else {}
    if "centres" in arrays and learning and seen.shape[0] < 2 * arrays["fitted"]:
        return arrays["centres"], {"centres": arrays["centres"], "fitted": arrays["fitted"], **learning}, None
    # Of fewer prompts a cluster's centre would be more its members' own than their kind's.
    members, fitted = kmeans(seen, min(spec.clusters, most_clusters(seen.shape[0], spec.window)), spec.seed)
    fitted = fitted[np.unique(members)]
    centres = fitted[chain(fitted)].astype(np.float32)
    keeps = {"centres": centres, "fitted": np.array(seen.shape[0]), **learning}
    follows = None if carried.last is None else int(nearest(arrays["centres"][[carried.last]], centres)[0])
    return centres, keeps, follows


def _packed(rows: Any) -> dict[str, NDArray[Any]]:
    """Features as plain arrays: the dense ones as they are, of sparse ones the three that make them."""
    if isinstance(rows, np.ndarray):
        return {"sample": rows}
    return {"sample": rows.data, "indices": rows.indices, "starts": rows.indptr, "features": np.array(rows.shape[1])}


def _unpacked(arrays: Mapping[str, NDArray[Any]]) -> list[Any]:
    if "sample" not in arrays:
        return []
    if "indices" not in arrays:
        return [arrays["sample"]]
    from scipy import sparse

    shape = (len(arrays["starts"]) - 1, int(arrays["features"]))
    return [sparse.csr_matrix((arrays["sample"], arrays["indices"], arrays["starts"]), shape)]


def _sample(n: int, seed: int) -> NDArray[np.int64]:
    """Places of the prompts that clusters are fitted on, ascending."""
    if n <= FIT_PROMPTS:
        return np.arange(n)
    return np.sort(np.random.Generator(np.random.PCG64(seed)).choice(n, FIT_PROMPTS, replace=False))


def _features(
    signal: Signal, prompts: PromptView, spec: OrderSpec, places: Places, progress: Progress | None
) -> Iterator[Any]:
    """Chunks of features that are numbers."""
    done = 0
    for rows in registry.features(signal, prompts, places, progress):
        bad = np.flatnonzero(~np.isfinite(np.asarray(rows.sum(axis=1)).ravel()))
        if bad.size:
            raise OrderError(
                f"{prompts.where(int(places[done + bad[0]]))}: its features by the signal {spec.signal!r} are not "
                f"numbers, nor those of {bad.size - 1} more prompts near it. The signal's model is broken, or "
                "overflows on them: use another one"
            )
        done += rows.shape[0]
        yield rows
