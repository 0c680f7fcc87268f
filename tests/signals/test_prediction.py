"""Experts are foretold from words, and the held-out fit is what refitting would give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orderproof.routing.routes import Routes, frequency_matrix
from orderproof.routing.routes_writer import write_routes
from orderproof.signals.prediction import (
    features_of,
    fit,
    learn,
    predictor_of,
    predictor_path,
    probabilities,
    read_predictor,
    write_predictor,
)
from orderproof.signals.registry import SignalError
from orderproof.signals.served_model import UNKNOWN_MODEL
from tests.support.routed import EXPERTS, LAYERS, TOP_K, Routed, fitted, make_routed


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Routed:
    return make_routed(tmp_path_factory.mktemp("routed"))


def predictor_file(routed: Routed) -> Path:
    assert routed.served.routes is not None
    return predictor_path(routed.served.routes)


def test_the_held_out_fit_is_what_refitting_without_each_prompt_gives(routed: Routed) -> None:
    from sklearn.linear_model import Ridge

    predictor = predictor_of(routed.served, "predicted")
    with routed.routes() as routes:
        roots = np.sqrt(frequency_matrix(routes, "decode"))
    features = features_of(predictor, routed.view, range(80), routed.served).astype(np.float64)
    left_out = np.empty_like(roots)
    for i in range(len(roots)):
        others = np.arange(len(roots)) != i
        model = Ridge(alpha=predictor.record.decode.alpha).fit(features[others], roots[others])
        left_out[i] = model.predict(features[[i]])[0]
    r2 = 1 - ((roots - left_out) ** 2).sum() / ((roots - roots.mean(axis=0)) ** 2).sum()
    assert predictor.record.decode.r2 == pytest.approx(r2, abs=1e-3)
    assert 0.3 < r2 < 0.95


def test_prompts_that_were_not_captured_are_foretold_their_kinds_experts(routed: Routed) -> None:
    predictor = predictor_of(routed.served, "predicted")
    features = features_of(predictor, routed.view, range(80, 100), routed.served)
    shares = (predictor.roots(features, "decode") ** 2).reshape(20, LAYERS, EXPERTS)
    first_half = shares[..., : EXPERTS // 2].sum(axis=-1) > shares[..., EXPERTS // 2 :].sum(axis=-1)
    of_first_kind = np.array([prompt["label"] == "aeiou" for prompt in routed.prompts[80:]])
    assert (first_half == of_first_kind[:, None]).all()


def test_answers_of_one_token_are_no_answers_without_experts(routed: Routed, tmp_path: Path) -> None:
    with routed.routes() as routes, write_routes(tmp_path / "short.parquet", routes.record) as writer:
        for k, captured in enumerate(routes):
            end = None if k % 2 else captured.prompt_tokens  # every other one stops after its prefill's token
            writer.add(captured.prompt_id, captured.prompt_tokens, captured.experts[:end])
    with Routes(tmp_path / "short.parquet") as short:
        predictor = fit(routed.view, short, routed.served)
    features = features_of(predictor, routed.view, range(80, 100), routed.served)
    shares = (predictor.roots(features, "decode") ** 2).reshape(20, LAYERS, EXPERTS).sum(axis=-1)
    assert shares.mean() > 0.5  # of a layer's choices; zeros taken for answers would halve the roots


def test_routes_that_have_nothing_to_do_with_the_words_are_not_foretold(tmp_path: Path) -> None:
    routed = make_routed(tmp_path)
    words = [prompt["text"] for prompt in routed.prompts]
    mixed = np.random.default_rng(1).permutation(len(words))
    for prompt, i in zip(routed.prompts, mixed, strict=True):
        prompt["text"] = words[i]
    record = fitted(routed).record
    assert record.decode.r2 < 0.05
    assert record.decode.alpha > 10


def test_a_fit_is_the_same_bits_each_time_and_after_its_file(routed: Routed, tmp_path: Path) -> None:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(3):
        again = fitted(routed)
    write_predictor(tmp_path / "predictor.npz", again)
    model = routed.served.model or Path()
    first, second = (read_predictor(path, model) for path in (predictor_file(routed), tmp_path / "predictor.npz"))
    assert first.record == second.record
    for part in ("prefill", "decode"):
        assert first.weights[part].tobytes() == second.weights[part].tobytes()
    assert first.lexical.tobytes() == second.lexical.tobytes()


def test_a_predictor_that_cannot_be_made_leaves_no_older_one_behind(tmp_path: Path) -> None:
    routed = make_routed(tmp_path)
    assert routed.served.routes is not None
    assert learn(routed.view, routed.served.routes, routed.served) == fitted(routed).record
    with pytest.raises(SignalError, match="not among the prompts"):
        learn(routed.view.take(range(50)), routed.served.routes, routed.served)
    assert not predictor_file(routed).exists()


def test_probabilities_are_shares_of_a_tokens_choices() -> None:
    roots = np.sqrt(np.array([[0.5, 0.25, 0.25, 0.0]], np.float32))
    assert probabilities(roots, TOP_K)[0] == pytest.approx([1.0, 0.5, 0.5, 0.0])
    assert probabilities(roots, 2 * TOP_K).max() == 1


def test_too_few_routes_and_routes_of_strange_prompts_are_told(routed: Routed, tmp_path: Path) -> None:
    with routed.routes() as routes:
        with pytest.raises(SignalError, match="'p0' and others that are not among the prompts"):
            fit(routed.view.take(range(1, 100)), routes, routed.served)
        with write_routes(tmp_path / "few.parquet", routes.record) as writer:
            for k in range(31):
                writer.add(routes[k].prompt_id, routes[k].prompt_tokens, routes[k].experts)
    with Routes(tmp_path / "few.parquet") as few, pytest.raises(SignalError, match=r"routes of 31 prompts.*32"):
        fit(routed.view, few, routed.served)


def test_without_routes_the_way_to_get_them_is_told(routed: Routed, tmp_path: Path) -> None:
    with pytest.raises(SignalError, match="orderproof capture JOB"):
        predictor_of(UNKNOWN_MODEL, "predicted")
    with pytest.raises(SignalError, match=r"predictor\.npz does not exist: `orderproof capture JOB` makes it"):
        predictor_of(replace(routed.served, routes=tmp_path / "routes.parquet"), "predicted")


@pytest.mark.parametrize("size", [0, 10, 500, -1])
def test_a_damaged_predictor_is_told(routed: Routed, tmp_path: Path, size: int) -> None:
    path = tmp_path / "predictor.npz"
    path.write_bytes(predictor_file(routed).read_bytes()[:size])
    with pytest.raises(SignalError, match="cannot be read as a predictor"):
        read_predictor(path, routed.served.model or Path())


def test_a_pickle_in_its_place_is_never_opened(routed: Routed, tmp_path: Path) -> None:
    np.savez(tmp_path / "predictor.npz", record=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(SignalError, match="cannot be read as a predictor"):
        read_predictor(tmp_path / "predictor.npz", routed.served.model or Path())


def test_a_predictor_of_another_model_is_told(routed: Routed, tmp_path: Path) -> None:
    other = make_routed(tmp_path, seed=1)
    with pytest.raises(SignalError, match="another model's routes"):
        read_predictor(predictor_file(routed), other.served.model or Path())
