"""Predict from a prompt how often it will use each expert: a kernel ridge regression, fitted on captured routes.

Its inputs are cheap to compute: the signal `token` and the leading directions of `lexical`; nystroem.py gives the
kernel of both. Square roots of frequencies are predicted, because their distances are those between distributions
(Hellinger) and not ruled by the few busiest experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.routing.routes import Routes, frequency_matrix
from orderproof.signals import registry
from orderproof.signals.nystroem import Landmarks, evenly_spaced, landmarks_among
from orderproof.signals.registry import Indices, Prompts, SignalError
from orderproof.signals.served_model import ServedModel
from orderproof.signals.threads import one_thread

LEXICAL_DIRECTIONS = 64
LEXICAL_ROWS = 2048  # from which these directions are computed, in time that grows with their cube
ALPHAS = tuple(10.0 ** (k / 2) for k in range(-6, 9))  # of the ridge's penalty, 0.001 to 10,000
LEAST_PROMPTS = 32  # with fewer the penalty cannot be chosen

Part = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Fitted:
    """How well one part is predicted, and with which penalty."""

    r2: float  # held out: each prompt is predicted from all others
    alpha: float


@dataclass(frozen=True)
class Record:
    """What a predictor was fitted on, and how well."""

    model: str  # fingerprint, as in the routes
    dataset_md5: str
    layers: int
    experts: int
    top_k: int
    prompts: int
    prefill: Fitted
    decode: Fitted


@dataclass(frozen=True, eq=False)
class Predictor:
    """Linear in the similarity of a prompt to landmarks."""

    record: Record
    lexical: NDArray[np.float32]  # [buckets, LEXICAL_DIRECTIONS or fewer]
    landmarks: Landmarks
    weights: dict[Part, NDArray[np.float32]]  # [1 + features, layers · experts]; the first row is the constant

    def roots(self, features: NDArray[np.float32], part: Part) -> NDArray[np.float32]:
        """float32[N, layers · experts], square roots of each layer's shares, from `features_of` the same N prompts."""
        with one_thread():
            predicted: NDArray[np.float32] = features @ self.weights[part][1:] + self.weights[part][0]
        return np.maximum(predicted, 0, out=predicted)


def fit(prompts: Prompts, routes: Routes, served: ServedModel) -> Predictor:
    """Fit both parts on all routes. The same bits for the same prompts and routes, on any number of threads.

    Args:
        prompts: all captured ones are among them.

    Raises:
        SignalError: too few routes, routes of unknown prompts, or no signal `token` for this model.
    """
    index_of = {prompt_id: i for i, prompt_id in enumerate(prompts.ids)}
    unknown = [prompt_id for prompt_id in routes.ids if prompt_id not in index_of]
    if unknown or len(routes) < LEAST_PROMPTS:
        what = (
            f"of {unknown[0]!r} and others that are not among the prompts" if unknown else f"of {len(routes)} prompts"
        )
        raise SignalError(
            f"{routes.path}: routes {what}, and a prediction is fitted on {LEAST_PROMPTS} prompts or more of the "
            "job's own. Make them again with `orderproof capture JOB`"
        )
    indices = [index_of[prompt_id] for prompt_id in routes.ids]
    with one_thread():
        token, triples = (_rows(name, prompts, indices, served) for name in ("token", "lexical"))
        directions = _directions(triples)
        rows = np.hstack([token, triples @ directions])
        landmarks = landmarks_among(rows)
        features = landmarks.features(rows).astype(np.float64)
        answered = _answered(routes)
        prefill, prefill_fitted = _ridge(features, _roots(routes, "prefill"))
        decode, decode_fitted = _ridge(features[answered], _roots(routes, "decode")[answered])
    record = routes.record
    return Predictor(
        Record(
            record.model, record.dataset_md5, record.layers, record.experts, record.top_k, len(routes),
            prefill_fitted, decode_fitted,
        ),
        directions,
        landmarks,
        {"prefill": prefill, "decode": decode},
    )  # fmt: skip


def _answered(routes: Routes) -> NDArray[np.bool_]:
    """Prompts with decode routes: the first token of an answer comes from the prefill. All prompts if few have any."""
    answered: NDArray[np.bool_] = routes.decode_tokens > 0
    return answered if answered.sum() >= LEAST_PROMPTS else np.ones_like(answered)


def _roots(routes: Routes, part: Part) -> NDArray[np.float32]:
    return np.sqrt(frequency_matrix(routes, part))


def _rows(name: Any, prompts: Prompts, indices: Indices, served: ServedModel) -> Any:
    signal = registry.load(OrderSpec(signal=name), served)
    return registry.stack(registry.features(signal, prompts, indices))


def _directions(triples: Any) -> NDArray[np.float32]:
    """float32[buckets, k]: leading right singular vectors of evenly spaced lexical rows, computed exactly."""
    from scipy.linalg import eigh

    triples = triples[evenly_spaced(triples.shape[0], LEXICAL_ROWS)]
    products = (triples @ triples.T).toarray().astype(np.float64)
    k = min(LEXICAL_DIRECTIONS, products.shape[0])
    squares, left = eigh(products, subset_by_index=(products.shape[0] - k, products.shape[0] - 1))
    return np.asarray(triples.T @ (left / np.sqrt(np.maximum(squares, 1e-12))), np.float32)


def _ridge(features: NDArray[np.float64], roots: NDArray[np.float32]) -> tuple[NDArray[np.float32], Fitted]:
    """Fit with the penalty of least leave-one-out error, at the cost of one fit (Golub, Heath & Wahba, 1979)."""
    from sklearn.linear_model import RidgeCV

    model = RidgeCV(ALPHAS).fit(features, roots.astype(np.float64))
    r2 = 1 + model.best_score_ / float(np.mean((roots - roots.mean(axis=0)) ** 2))
    weights = np.vstack([model.intercept_, model.coef_.T]).astype(np.float32)
    return weights, Fitted(r2=float(r2), alpha=float(model.alpha_))


def features_of(predictor: Predictor, prompts: Prompts, indices: Indices, served: ServedModel) -> NDArray[np.float32]:
    """float32[indices, features] of some prompts, as the predictor was fitted on."""
    token = registry.load(OrderSpec(signal="token"), served)(prompts, indices)
    triples = registry.load(OrderSpec(signal="lexical"), served)(prompts, indices)
    with one_thread():
        return predictor.landmarks.features(np.hstack([token, triples @ predictor.lexical]))


def probabilities(roots: NDArray[np.float32], top_k: int) -> NDArray[np.float32]:
    """The probability that a token uses each expert, from roots of shares; a token uses `top_k` experts per layer."""
    result: NDArray[np.float32] = np.minimum(np.square(roots) * np.float32(top_k), np.float32(1))
    return result


def captured_rows(routes: Routes, part: Part) -> dict[str, NDArray[np.float32]]:
    """Prompt id → square roots of its captured frequencies."""
    return dict(zip(routes.ids, _roots(routes, part), strict=True))
