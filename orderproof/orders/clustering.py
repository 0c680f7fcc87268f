"""K-means, nearest centres, and a chain of centres in which similar ones are neighbours.

Rows are sparse or dense; the results are plain arrays, the same bits for the same seed on any number of threads.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.signals.threads import one_thread

STARTS = 4  # of k-means; the one with the smallest distances is taken
BEST_CHAIN_CLUSTERS = 1000  # takes some seconds; with more, similar clusters are still neighbours, not optimally so


def kmeans(rows: Any, clusters: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Cluster N rows, sparse or dense: the same bits for the same seed on any number of threads.

    Returns:
        int64[N]: each row's cluster; float[clusters, features]: their centres.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    random = np.random.RandomState(np.random.MT19937(seed))  # takes seeds of any size, unlike an int
    model = KMeans(clusters, n_init=STARTS, random_state=random)
    with one_thread(), warnings.catch_warnings():  # after the imports, since it pins only libraries already loaded
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct prompts than clusters: some stay empty
        model.fit(rows)
    return model.labels_.astype(np.int64), model.cluster_centers_


def nearest(rows: Any, centres: NDArray[Any]) -> NDArray[np.int64]:
    """int64[N]: each row's nearest centre; the first of equally near ones."""
    with one_thread():
        products = np.asarray(rows @ centres.T)
    distances = np.square(centres).sum(axis=1) - 2 * products  # a row's own length is the same for all centres
    members: NDArray[np.int64] = distances.argmin(axis=1).astype(np.int64)
    return members


def chain(centres: NDArray[Any]) -> NDArray[np.int64]:
    """Put k centres in a row so that neighbours are similar.

    The row is the leaves of their average-linkage tree by cosine distance, its branches turned so that the sum of the
    distances between neighbours is smallest (Bar-Joseph, Gifford & Jaakkola, 2001).

    Returns:
        int64[k]: indices of centres, in the order of the row.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import pdist

    if len(centres) < 3:
        return np.arange(len(centres))
    distances = np.nan_to_num(pdist(centres.astype(np.float64), "cosine"), nan=1.0)  # nan: the centre of empty texts
    tree = linkage(distances.clip(0), "average", optimal_ordering=len(centres) <= BEST_CHAIN_CLUSTERS)
    row: NDArray[np.int64] = leaves_list(tree).astype(np.int64)
    return row
