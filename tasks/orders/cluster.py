"""By what the prompts are about: clusters of a signal, chained so that similar clusters touch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.tasks.jobs import OrderSpec
from orderproof.tasks.orders.order import OrderError
from orderproof.tasks.orders.ranking import Ranking
from orderproof.tasks.orders.view import PromptView
from orderproof.tasks.signals import Progress, features
from orderproof.tasks.signals.threads import one_thread

FULL_KMEANS_PROMPTS = 20_000  # above it in mini-batches, whose clusters are slightly worse and whose time stays linear
MINI_BATCH_PROMPTS = 4096
STARTS = 4  # of k-means; the tightest clusters win
BEST_CHAIN_CLUSTERS = 1000  # some seconds; above it, similar clusters still touch, but the chain is not the best


def rank(prompts: PromptView, spec: OrderSpec, progress: Progress | None = None) -> Ranking:
    """K-means on the prompts' features; a prompt's rank is the place of its cluster in the chain.

    With fewer prompts than `spec.clusters` every prompt is a cluster, and the order is the chain itself.

    Raises:
        OrderError: a prompt's features are not numbers.
        SignalError: no such embedding model.
    """
    parameters = {"clusters": spec.clusters, "embedding": spec.embedding}
    if not len(prompts):
        return Ranking(np.zeros(0, np.int64), parameters, {"kmeans": spec.seed})
    rows = features(spec.embedding, prompts.texts(), total=len(prompts), progress=progress)
    _refuse_nan(rows, prompts, spec)
    members, centres = kmeans(rows, min(spec.clusters, len(prompts)), spec.seed)
    used, members = np.unique(members, return_inverse=True)  # a cluster of no prompts would be a link of nothing
    places = np.empty(len(used), np.int64)
    places[chain(centres[used])] = np.arange(len(used))
    return Ranking(places[members], parameters, {"kmeans": spec.seed})


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
