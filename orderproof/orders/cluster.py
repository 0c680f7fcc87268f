"""The method `cluster`: group prompts by what they are about, with similar groups next to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.orders.clustering import chain, kmeans, nearest
from orderproof.orders.order import OrderError
from orderproof.orders.ranking import FIRST_WINDOW, Ranking, WindowState
from orderproof.orders.view import PromptView
from orderproof.signals import registry
from orderproof.signals.registry import Indices, Signal

FIT_PROMPTS = 20_000  # of more prompts the clusters are fitted on a random sample of this size
LEARNING_PROMPTS = 1024  # from which clusters are learned where prompts are ordered in windows
PROMPTS_PER_CLUSTER = 8  # at least, on average, while they are learned


def rank(prompts: PromptView, spec: OrderSpec, state: WindowState = FIRST_WINDOW) -> Ranking:
    """Rank a prompt by the place of its k-means cluster in the chain of clusters.

    With fewer prompts than `spec.clusters` every prompt is a cluster, and the order is the chain itself. In windows,
    clusters are learned from the first prompts: see `_learn_centres`.

    Raises:
        OrderError: a prompt's features are not finite numbers.
        SignalError: the signal cannot be computed for these prompts.
    """
    parameters = {"clusters": spec.clusters, **registry.provenance(spec, prompts.served)}
    seeds = {"kmeans": spec.seed}
    if not len(prompts):
        return Ranking(np.zeros(0, np.int64), parameters, seeds, state.arrays)
    signal = registry.load(spec, prompts.served)
    if spec.window is None:
        return Ranking(_cluster_ranks(signal, prompts, spec), parameters, seeds)
    rows = registry.stack(_features(signal, prompts, spec, range(len(prompts))))
    centres, next_state, previous_rank = _learn_centres(rows, spec, state)
    return Ranking(nearest(rows, centres), parameters, seeds, next_state, previous_rank)


def most_clusters(prompts: int, window: int | None) -> int:
    """The largest number of clusters that can be made of so many prompts."""
    if window is None:
        return min(prompts, FIT_PROMPTS)
    return max(1, min(prompts, LEARNING_PROMPTS + window) // PROMPTS_PER_CLUSTER)


def _cluster_ranks(signal: Signal, prompts: PromptView, spec: OrderSpec) -> NDArray[np.int64]:
    """int64[N]: the place of each prompt's cluster in the chain.

    Above FIT_PROMPTS a sample is clustered, and then every prompt goes to the nearest centre, chunk by chunk, so that
    time grows with the number of prompts and memory does not.
    """
    sample = _sample(len(prompts), spec.seed)
    rows = _features(signal, prompts, spec, sample)
    members, centres = kmeans(registry.stack(rows), min(spec.clusters, most_clusters(len(prompts), None)), spec.seed)
    if len(sample) < len(prompts):
        rows = _features(signal, prompts, spec, range(len(prompts)))
        members = np.concatenate([nearest(chunk, centres) for chunk in rows])
    used, members = np.unique(members, return_inverse=True)  # an empty cluster has no place in the chain
    ranks = np.empty(len(used), np.int64)
    ranks[chain(centres[used])] = np.arange(len(used))
    return ranks[members]


def _learn_centres(
    rows: Any, spec: OrderSpec, state: WindowState
) -> tuple[NDArray[np.float32], dict[str, NDArray[Any]], int | None]:
    """The centres by which a window's prompts are grouped.

    They are fitted on all prompts so far each time their number has doubled, up to LEARNING_PROMPTS, and then stay
    fixed: one window holds too few similar prompts to find the groups. (Six domains, windows of 128, default embedding:
    among 16 neighbours the most common label has a share of 81 % with clusters of each window alone, 83 % with these,
    84 % with clusters of the whole file or with the true labels.) Prompts of a kind that first appears later go to the
    nearest cluster.

    Returns:
        float32[k, features], the centres in the order of their chain; the next window's state; and, if the centres were
        fitted anew, the new centre nearest to the one with which the previous window ended.
    """
    arrays = dict(state.arrays)
    if "centres" in arrays and "sample" not in arrays:
        return arrays["centres"], arrays, None
    prompts = registry.stack([*_sample_rows(arrays), rows])
    sample = _sample_arrays(prompts) if prompts.shape[0] < LEARNING_PROMPTS else {}
    if "centres" in arrays and sample and prompts.shape[0] < 2 * arrays["fitted"]:
        return arrays["centres"], {"centres": arrays["centres"], "fitted": arrays["fitted"], **sample}, None
    # With fewer prompts per cluster a centre would describe its few members rather than their kind.
    members, fitted = kmeans(prompts, min(spec.clusters, most_clusters(prompts.shape[0], spec.window)), spec.seed)
    fitted = fitted[np.unique(members)]
    centres = fitted[chain(fitted)].astype(np.float32)
    next_state = {"centres": centres, "fitted": np.array(prompts.shape[0]), **sample}
    last_rank = state.last_rank
    previous_rank = None if last_rank is None else int(nearest(arrays["centres"][[last_rank]], centres)[0])
    return centres, next_state, previous_rank


def _sample_arrays(rows: Any) -> dict[str, NDArray[Any]]:
    """Feature rows as plain arrays: a dense matrix as it is, a sparse one as its three arrays and its width."""
    if isinstance(rows, np.ndarray):
        return {"sample": rows}
    return {"sample": rows.data, "indices": rows.indices, "starts": rows.indptr, "features": np.array(rows.shape[1])}


def _sample_rows(arrays: Mapping[str, NDArray[Any]]) -> list[Any]:
    """The feature rows that `_sample_arrays` took apart; empty if there are none."""
    if "sample" not in arrays:
        return []
    if "indices" not in arrays:
        return [arrays["sample"]]
    from scipy import sparse

    shape = (len(arrays["starts"]) - 1, int(arrays["features"]))
    return [sparse.csr_matrix((arrays["sample"], arrays["indices"], arrays["starts"]), shape)]


def _sample(n: int, seed: int) -> NDArray[np.int64]:
    """Indices of the prompts on which clusters are fitted, ascending."""
    if n <= FIT_PROMPTS:
        return np.arange(n)
    return np.sort(np.random.Generator(np.random.PCG64(seed)).choice(n, FIT_PROMPTS, replace=False))


def _features(signal: Signal, prompts: PromptView, spec: OrderSpec, indices: Indices) -> Iterator[Any]:
    """Chunks of features, each checked to be finite."""
    done = 0
    for rows in registry.features(signal, prompts, indices):
        bad = np.flatnonzero(~np.isfinite(np.asarray(rows.sum(axis=1)).ravel()))
        if bad.size:
            more = f" (and {bad.size - 1} more prompts near it)" if bad.size > 1 else ""
            raise OrderError(
                f"{prompts.where(int(indices[done + bad[0]]))}: the signal {spec.signal!r} gives values that are not "
                f"finite numbers{more}. The signal's model is broken, or overflows on this prompt: use another signal "
                "or model"
            )
        done += rows.shape[0]
        yield rows
