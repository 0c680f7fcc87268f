"""A linear fit on the features is a kernel fit on the rows, and nothing breaks where rows are few or alike."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel

from orderproof.signals import nystroem
from orderproof.signals.nystroem import landmarks_among


def rows(number: int, width: int = 5) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(number, width)).astype(np.float32)


def test_inner_products_of_features_are_the_kernel_where_every_row_is_a_landmark() -> None:
    known = rows(60)
    made = landmarks_among(known)
    features = made.features(known)
    assert features @ features.T == pytest.approx(rbf_kernel(known, gamma=made.gamma), abs=0.05)


def test_ridge_on_the_features_is_kernel_ridge_on_the_rows() -> None:
    known, new = rows(200)[:150], rows(200)[150:]
    target = np.sin(known[:, 0]) * known[:, 1]
    made = landmarks_among(known)
    linear = Ridge(alpha=1.0, fit_intercept=False).fit(made.features(known), target).predict(made.features(new))
    kernel = KernelRidge(alpha=1.0, kernel="rbf", gamma=made.gamma).fit(known, target).predict(new)
    assert linear == pytest.approx(kernel, abs=0.01)


def test_a_product_of_two_features_is_learned_which_no_linear_fit_can() -> None:
    known, new = rows(600)[:500], rows(600)[500:]
    made = landmarks_among(known)
    seen = [
        Ridge(alpha=0.1).fit(x, known[:, 0] * known[:, 1]).score(y, new[:, 0] * new[:, 1])
        for x, y in ((made.features(known), made.features(new)), (known, new))
    ]
    assert seen[0] > 0.5 > 0.1 > seen[1]


def test_more_rows_than_landmarks_are_compared_with_evenly_spread_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nystroem, "LANDMARKS", 10)
    monkeypatch.setattr(nystroem, "DIRECTIONS", 4)
    known = rows(91)
    made = landmarks_among(known)
    assert (made.rows == known[::10]).all()
    assert made.features(known).shape == (91, 4)


@pytest.mark.parametrize("known", [rows(1), np.zeros((40, 3), np.float32), np.repeat(rows(4), 10, axis=0)])
def test_rows_that_are_one_or_all_the_same_give_finite_features(known: np.ndarray) -> None:
    assert np.isfinite(landmarks_among(known).features(known)).all()
