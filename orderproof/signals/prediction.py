"""From what is cheap to see of a prompt to how often it will use each expert: a kernel ridge regression, fitted on
captured routes.

In: routes of some prompts, and those prompts. Out: a `Predictor`, and its file: plain arrays, no pickle. Knows nothing
of how routes are captured or what predictions are used for.

Cheap to see are the signal `token` and, reduced to its leading directions, `lexical`; landmarks.py makes the kernel of
both. Predicted are square roots of frequencies: their distances are those between distributions (Hellinger), not ruled
by the few busiest experts.
"""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from orderproof.job.files import atomic_file
from orderproof.job.model import fingerprint
from orderproof.job.spec import OrderSpec
from orderproof.routing.routes import Routes, frequency_matrix
from orderproof.signals import registry
from orderproof.signals.nystroem import Landmarks, landmarks_among, spread
from orderproof.signals.registry import Indices, Prompts, SignalError
from orderproof.signals.served_model import ServedModel
from orderproof.signals.threads import one_thread

FORMAT = "orderproof/predictor/2"
LEXICAL_DIRECTIONS = 64
LEXICAL_ROWS = 2048  # that tell these directions: a decomposition costs the cube of its rows
ALPHAS = tuple(10.0 ** (k / 2) for k in range(-6, 9))  # of the ridge's penalty, 0.001 to 10,000
LEAST_PROMPTS = 32  # fewer cannot tell a penalty

Part = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Fitted:
    """How well one part is foretold, and at which penalty."""

    r2: float  # held out: each prompt foretold from all the others
    alpha: float


@dataclass(frozen=True)
class Record:
    """What a predictor was fitted on."""

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
    """Linear in how alike a prompt is to landmarks."""

    record: Record
    lexical: NDArray[np.float32]  # [buckets, LEXICAL_DIRECTIONS or fewer]
    landmarks: Landmarks
    weights: dict[Part, NDArray[np.float32]]  # [1 + features, layers · experts]; the first row is the constant

    def roots(self, features: NDArray[np.float32], part: Part) -> NDArray[np.float32]:
        """float32[N, layers · experts]: square roots of a layer's shares, from `features_of` the same N prompts."""
        with one_thread():
            foretold: NDArray[np.float32] = features @ self.weights[part][1:] + self.weights[part][0]
        return np.maximum(foretold, 0, out=foretold)


def learn(prompts: Prompts, routes: Path, served: ServedModel) -> Record:
    """Put a predictor beside captured routes; the one before goes, whatever comes of this.

    Raises:
        SignalError: as `fit`.
    """
    predictor_path(routes).unlink(missing_ok=True)
    with Routes(routes) as captured:
        predictor = fit(prompts, captured, served)
    write_predictor(predictor_path(routes), predictor)
    return predictor.record


def fit(prompts: Prompts, routes: Routes, served: ServedModel) -> Predictor:
    """Fit both parts on all routes. The same bits for the same prompts and routes, on any number of threads.

    Args:
        prompts: in them stand all captured ones.

    Raises:
        SignalError: too few routes, routes of prompts that are not there, or no signal `token` of this model.
    """
    place = {prompt_id: i for i, prompt_id in enumerate(prompts.ids)}
    strange = [prompt_id for prompt_id in routes.ids if prompt_id not in place]
    if strange or len(routes) < LEAST_PROMPTS:
        what = (
            f"of {strange[0]!r} and others that are not among the prompts" if strange else f"of {len(routes)} prompts"
        )
        raise SignalError(
            f"{routes.path}: routes {what}, and a prediction is fitted on {LEAST_PROMPTS} prompts or more of the "
            "job's own. Make them again with `orderproof capture JOB`"
        )
    places = [place[prompt_id] for prompt_id in routes.ids]
    with one_thread():
        token, triples = (_rows(name, prompts, places, served) for name in ("token", "lexical"))
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
    """Which prompts tell of decoding: an answer of one token comes from the prefill alone. All, where few tell."""
    told: NDArray[np.bool_] = routes.decode_tokens > 0
    return told if told.sum() >= LEAST_PROMPTS else np.ones_like(told)


def _roots(routes: Routes, part: Part) -> NDArray[np.float32]:
    return np.sqrt(frequency_matrix(routes, part))


def _rows(name: Any, prompts: Prompts, places: Indices, served: ServedModel) -> Any:
    signal = registry.load(OrderSpec(signal=name), served)
    return registry.stack(registry.features(signal, prompts, places))


def _directions(triples: Any) -> NDArray[np.float32]:
    """float32[buckets, k]: leading right singular vectors of evenly spread lexical rows, by an exact decomposition."""
    from scipy.linalg import eigh

    triples = triples[spread(triples.shape[0], LEXICAL_ROWS)]
    products = (triples @ triples.T).toarray().astype(np.float64)
    k = min(LEXICAL_DIRECTIONS, products.shape[0])
    squares, left = eigh(products, subset_by_index=(products.shape[0] - k, products.shape[0] - 1))
    return np.asarray(triples.T @ (left / np.sqrt(np.maximum(squares, 1e-12))), np.float32)


def _ridge(features: NDArray[np.float64], roots: NDArray[np.float32]) -> tuple[NDArray[np.float32], Fitted]:
    """The penalty with the least leave-one-out error, which costs no more than one fit (Golub, Heath & Wahba, 1979)."""
    from sklearn.linear_model import RidgeCV

    model = RidgeCV(ALPHAS).fit(features, roots.astype(np.float64))
    r2 = 1 + model.best_score_ / float(np.mean((roots - roots.mean(axis=0)) ** 2))
    weights = np.vstack([model.intercept_, model.coef_.T]).astype(np.float32)
    return weights, Fitted(r2=float(r2), alpha=float(model.alpha_))


def features_of(predictor: Predictor, prompts: Prompts, places: Indices, served: ServedModel) -> NDArray[np.float32]:
    """float32[places, features], as the predictor was fitted on."""
    token = registry.load(OrderSpec(signal="token"), served)(prompts, places)
    triples = registry.load(OrderSpec(signal="lexical"), served)(prompts, places)
    with one_thread():
        return predictor.landmarks.features(np.hstack([token, triples @ predictor.lexical]))


def write_predictor(path: Path, predictor: Predictor) -> None:
    """Atomically, as npz."""
    record = json.dumps({"format": FORMAT, **asdict(predictor.record)})
    with atomic_file(path) as sink:
        np.savez(
            sink,
            allow_pickle=False,
            record=np.array(record),
            lexical=predictor.lexical,
            landmarks=predictor.landmarks.rows,
            gamma=np.array(predictor.landmarks.gamma),
            basis=predictor.landmarks.basis,
            **predictor.weights,
        )
    registry.clear_caches()
    predictor_of.cache_clear()


def read_predictor(path: Path, model: Path) -> Predictor:
    """Read one that must be of this model.

    Raises:
        SignalError: there is none, it is damaged, or it is another model's.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            told = json.loads(str(file["record"]))
            if told.pop("format") != FORMAT:
                raise ValueError("of another version")
            parts: dict[str, Any] = {part: Fitted(**told.pop(part)) for part in ("prefill", "decode")}
            record = Record(**told, **parts)
            weights: dict[Part, NDArray[np.float32]] = {"prefill": file["prefill"], "decode": file["decode"]}
            landmarks = Landmarks(file["landmarks"], float(file["gamma"]), file["basis"])
            predictor = Predictor(record, file["lexical"], landmarks, weights)
    except FileNotFoundError:
        raise SignalError(f"{path} does not exist: `orderproof capture JOB` makes it, beside the routes") from None
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        BadZipFile,
    ) as error:  # numpy's and json's words for a damaged file
        raise SignalError(f"{path} cannot be read as a predictor: {error}. {_REMEDY}") from None
    if record.model != (now := fingerprint(model)):
        raise SignalError(
            f"{path} was fitted on another model's routes (fingerprint {record.model[:12]}, and that of {model} is "
            f"{now[:12]}). {_REMEDY}"
        )
    return predictor


_REMEDY = "Make it again with `orderproof capture JOB`"


@functools.lru_cache(maxsize=1)  # windows ask for it again and again
def predictor_of(served: ServedModel, signal: str) -> Predictor:
    """The one beside the routes. Raises SignalError where the model or its routes are not known."""
    if served.model is None or served.routes is None:
        raise SignalError(
            f"the signal {signal!r} rests on captured routes: it works for a job of params.yaml after "
            "`orderproof capture JOB`, or with --model FOLDER --routes FILE. `lexical` and `token` need none"
        )
    return read_predictor(predictor_path(served.routes), served.model)


def predictor_path(routes: Path) -> Path:
    """Beside the routes it was fitted on."""
    return routes.with_name("predictor.npz")


def probabilities(roots: NDArray[np.float32], top_k: int) -> NDArray[np.float32]:
    """Roots of a layer's shares → how likely a token chooses each expert, which chooses `top_k` of a layer."""
    chances: NDArray[np.float32] = np.minimum(np.square(roots) * np.float32(top_k), np.float32(1))
    return chances


def captured_rows(routes: Routes, part: Part) -> dict[str, NDArray[np.float32]]:
    """Prompt id → square roots of its own frequencies."""
    return dict(zip(routes.ids, _roots(routes, part), strict=True))
