"""By what the prompts are about: clusters of a signal, chained so that similar clusters touch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.tasks.jobs import OrderSpec
from orderproof.tasks.orders.order import OrderError
from orderproof.tasks.orders.ranking import NOTHING, Carried, Ranking
from orderproof.tasks.orders.view import PromptView
from orderproof.tasks.signals import Progress, features
from orderproof.tasks.signals.threads import one_thread

FULL_KMEANS_PROMPTS = 20_000  # above it in mini-batches, whose clusters are slightly worse and whose time stays linear
MINI_BATCH_PROMPTS = 4096
LEARNING_PROMPTS = 1024  # from which the clusters of windows are learned
PROMPTS_PER_CLUSTER = 8  # at least, on average, while they are learned
STARTS = 4  # of k-means; the tightest clusters win
BEST_CHAIN_CLUSTERS = 1000  # some seconds; above it, similar clusters still touch, but the chain is not the best


def rank(prompts: PromptView, spec: OrderSpec, progress: Progress | None = None, carried: Carried = NOTHING) -> Ranking:
    """K-means on the prompts' features; a prompt's rank is the place of its cluster in the chain.

    With fewer prompts than `spec.clusters` every prompt is a cluster, and the order is the chain itself. Windows learn
    their clusters from the first few: see `_learned`.

    Raises:
        OrderError: a prompt's features are not numbers.
        SignalError: no such embedding model.
    """
    parameters, seeds = {"clusters": spec.clusters, "embedding": spec.embedding}, {"kmeans": spec.seed}
    if not len(prompts):
        return Ranking(np.zeros(0, np.int64), parameters, seeds, carried.arrays)
    rows = features(spec.embedding, prompts.texts(), total=len(prompts), progress=progress)
    _refuse_nan(rows, prompts, spec)
    if spec.window is None:
        members, fitted = kmeans(rows, min(spec.clusters, len(prompts)), spec.seed)
        used, members = np.unique(members, return_inverse=True)  # a cluster of no prompts would be a link of nothing
        places = np.empty(len(used), np.int64)
        places[chain(fitted[used])] = np.arange(len(used))
        return Ranking(places[members], parameters, seeds)
    centres, keeps, follows = _learned(rows, spec, carried)
    return Ranking(nearest(rows, centres), parameters, seeds, keeps, follows)


def _learned(
    rows: Any, spec: OrderSpec, carried: Carried
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
    seen = _stacked([*_unpacked(arrays), rows])
    learning = _packed(seen) if seen.shape[0] < LEARNING_PROMPTS else {}
    if "centres" in arrays and learning and seen.shape[0] < 2 * arrays["fitted"]:
        return arrays["centres"], {"centres": arrays["centres"], "fitted": arrays["fitted"], **learning}, None
    # Of fewer prompts a cluster's centre would be more its members' own than their kind's.
    members, fitted = kmeans(seen, min(spec.clusters, max(1, seen.shape[0] // PROMPTS_PER_CLUSTER)), spec.seed)
    fitted = fitted[np.unique(members)]
    centres = fitted[chain(fitted)].astype(np.float32)
    keeps = {"centres": centres, "fitted": np.array(seen.shape[0]), **learning}
    follows = None if carried.last is None else int(nearest(arrays["centres"][[carried.last]], centres)[0])
    return centres, keeps, follows


def nearest(rows: Any, centres: NDArray[np.float32]) -> NDArray[np.int64]:
    """int64[N]: of each row, sparse or dense, the nearest centre; the same bits on any number of threads."""
    with one_thread():
        products = np.asarray(rows @ centres.T)  # a row's own length is the same to all centres
    distances = np.square(centres).sum(axis=1) - 2 * products
    found: NDArray[np.int64] = distances.argmin(axis=1).astype(np.int64)
    return found


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


def _stacked(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    from scipy import sparse

    return sparse.vstack(parts, format="csr")


def kmeans(rows: Any, clusters: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Cluster N rows, sparse or dense: the same bits for the same seed on any number of threads.

    Returns:
        int64[N]: each row's cluster; float[clusters, features]: their centres.
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning

    random = np.random.RandomState(np.random.MT19937(seed))  # takes seeds of any size, unlike an int
    if rows.shape[0] <= FULL_KMEANS_PROMPTS:
        model = KMeans(clusters, n_init=STARTS, random_state=random)
    else:
        model = MiniBatchKMeans(clusters, n_init=STARTS, batch_size=MINI_BATCH_PROMPTS, random_state=random)
    with one_thread(), warnings.catch_warnings():  # entered after the imports: it pins the libraries that are loaded
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct prompts than clusters: some stay empty
        model.fit(rows)
    return model.labels_.astype(np.int64), model.cluster_centers_


def chain(centres: NDArray[Any]) -> NDArray[np.int64]:
    """Put k centres in a row so that neighbours are similar.

    The leaves of their average-linkage tree by cosine distance, turned so that the sum of neighbours' distances is the
    least (Bar-Joseph, Gifford & Jaakkola, 2001).

    Returns:
        int64[k]: indices of centres, in the row's order.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import pdist

    if len(centres) < 3:
        return np.arange(len(centres))
    distances = np.nan_to_num(pdist(centres.astype(np.float64), "cosine"), nan=1.0)  # nan: the centre of empty texts
    tree = linkage(distances.clip(0), "average", optimal_ordering=len(centres) <= BEST_CHAIN_CLUSTERS)
    row: NDArray[np.int64] = leaves_list(tree).astype(np.int64)
    return row


def _refuse_nan(rows: Any, prompts: PromptView, spec: OrderSpec) -> None:
    sums = np.asarray(rows.sum(axis=1)).ravel()
    bad = np.flatnonzero(~np.isfinite(sums))
    if bad.size:
        raise OrderError(
            f"{prompts.where(int(bad[0]))}: its features by {spec.embedding!r} are not numbers, nor those of "
            f"{bad.size - 1} more prompts. The embedding model is broken, or overflows on them: use another one"
        )
