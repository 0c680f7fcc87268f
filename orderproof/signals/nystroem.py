"""Rows → how alike they are to landmarks among the rows that were learned from: what a regression bends with.

In: dense feature rows. Out: `Landmarks`, which turns such rows into features in which a linear fit is a smooth one. It
knows nothing of prompts or of what is foretold.

The Nyström method (Williams & Seeger, 2001): ridge regression on these features is kernel ridge regression with a
Gaussian kernel, but for the directions that LANDMARKS rows do not span, and costs the same for any number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

LANDMARKS = 2048
DIRECTIONS = 1024  # of them the leading ones are kept
LEAST_SQUARE = 0.01  # of a direction: smaller ones, as of two landmarks alike, would be rounding errors blown up
WIDTH_ROWS = 256  # whose distances tell the kernel's width


@dataclass(frozen=True, eq=False)
class Landmarks:
    """A kernel and the rows that it compares with."""

    rows: Float32  # [landmarks, width]
    gamma: float  # of exp(-gamma · squared distance)
    basis: Float32  # [landmarks, directions], with which features of landmarks have their kernel as inner products

    def features(self, rows: Float32) -> Float32:
        """float32[N, directions] of float32[N, width]."""
        from sklearn.metrics.pairwise import rbf_kernel

        alike: Float32 = rbf_kernel(rows, self.rows, self.gamma).astype(np.float32)
        return alike @ self.basis


def landmarks_among(rows: Float32) -> Landmarks:
    """Evenly spread rows, and a kernel as wide as the median distance between two of them."""
    from scipy.linalg import eigh
    from sklearn.metrics.pairwise import euclidean_distances, rbf_kernel

    chosen = rows[spread(len(rows), LANDMARKS)]
    some = chosen[spread(len(chosen), WIDTH_ROWS)]
    apart = euclidean_distances(some, squared=True)
    apart = apart[np.triu_indices(len(some), 1)]
    middle = float(np.median(apart)) if len(apart) else 0.0
    gamma = 1 / middle if middle > 0 else 1.0
    alike = rbf_kernel(chosen.astype(np.float64), gamma=gamma)
    last = len(chosen) - 1
    squares, directions = eigh(alike, subset_by_index=(max(0, last + 1 - DIRECTIONS), last))
    return Landmarks(chosen, gamma, np.asarray(directions / np.sqrt(np.maximum(squares, LEAST_SQUARE)), np.float32))


def spread(number: int, most: int) -> NDArray[np.int64]:
    """int64[min(number, most)]: places among `number`, evenly apart, ascending."""
    return np.linspace(0, number - 1, min(number, most)).round().astype(np.int64)
