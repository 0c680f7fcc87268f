"""Features in which a linear fit is a kernel regression: how similar a row is to landmarks among the fitted rows.

The Nyström method (Williams & Seeger, 2001): ridge regression on these features is kernel ridge regression with a
Gaussian kernel, but for the directions that LANDMARKS rows do not span, and costs the same for any number of rows.
"""
# Not sklearn's Nystroem: on 5,000 prompts its held-out R² is 0.008 to 0.010 lower with 1,024 features, and with 2,048
# landmarks the fit takes 3.9 times as long, since it keeps every direction.

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

LANDMARKS = 2048
DIRECTIONS = 1024  # the leading ones are kept
MIN_EIGENVALUE = 0.01  # smaller ones, as of two equal landmarks, would amplify rounding errors
WIDTH_ROWS = 256  # from whose distances the kernel's width is computed


@dataclass(frozen=True, eq=False)
class Landmarks:
    """A kernel and the rows that it compares with."""

    rows: Float32  # [landmarks, width]
    gamma: float  # of exp(-gamma · squared distance)
    basis: Float32  # [landmarks, directions]: the inner products of landmarks' features are their kernel

    def features(self, rows: Float32) -> Float32:
        """float32[N, width] → float32[N, directions]."""
        from sklearn.metrics.pairwise import rbf_kernel

        kernel: Float32 = rbf_kernel(rows, self.rows, self.gamma).astype(np.float32)
        return kernel @ self.basis


def landmarks_among(rows: Float32) -> Landmarks:
    """Choose evenly spaced rows, and a kernel as wide as the median distance between two of them."""
    from scipy.linalg import eigh
    from sklearn.metrics.pairwise import euclidean_distances, rbf_kernel

    landmarks = rows[evenly_spaced(len(rows), LANDMARKS)]
    some = landmarks[evenly_spaced(len(landmarks), WIDTH_ROWS)]
    distances = euclidean_distances(some, squared=True)[np.triu_indices(len(some), 1)]
    median = float(np.median(distances)) if len(distances) else 0.0
    gamma = 1 / median if median > 0 else 1.0
    kernel = rbf_kernel(landmarks.astype(np.float64), gamma=gamma)
    last = len(landmarks) - 1
    eigenvalues, directions = eigh(kernel, subset_by_index=(max(0, last + 1 - DIRECTIONS), last))
    basis = np.asarray(directions / np.sqrt(np.maximum(eigenvalues, MIN_EIGENVALUE)), np.float32)
    return Landmarks(landmarks, gamma, basis)


def evenly_spaced(number: int, most: int) -> NDArray[np.int64]:
    """int64[min(number, most)]: evenly spaced indices below `number`, ascending."""
    return np.linspace(0, number - 1, min(number, most)).round().astype(np.int64)
