"""Experts are predicted from words, and the held-out fit is what refitting would give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orderproof.routing.routes import Routes, frequency_matrix
from orderproof.routing.routes_writer import write_routes
from orderproof.signals.predictor import features_of, fit, probabilities
from orderproof.signals.predictor_file import predictor_of
from orderproof.signals.registry import SignalError
from tests.support.routed import EXPERTS, LAYERS, TOP_K, Routed, fitted, make_routed


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Routed:
    return make_routed(tmp_path_factory.mktemp("routed"))


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


def test_other_prompts_are_predicted_the_experts_of_their_kind(routed: Routed) -> None:
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


def test_routes_that_have_nothing_to_do_with_the_words_are_not_predicted(tmp_path: Path) -> None:
    routed = make_routed(tmp_path)
    words = [prompt["text"] for prompt in routed.prompts]
    mixed = np.random.default_rng(1).permutation(len(words))
    for prompt, i in zip(routed.prompts, mixed, strict=True):
        prompt["text"] = words[i]
    record = fitted(routed).record
    assert record.decode.r2 < 0.05
    assert record.decode.alpha > 10


def test_probabilities_are_shares_of_a_tokens_choices() -> None:
    roots = np.sqrt(np.array([[0.5, 0.25, 0.25, 0.0]], np.float32))
    assert probabilities(roots, TOP_K)[0] == pytest.approx([1.0, 0.5, 0.5, 0.0])
    assert probabilities(roots, 2 * TOP_K).max() == 1


def test_too_few_routes_and_routes_of_strange_prompts_are_refused(routed: Routed, tmp_path: Path) -> None:
    with routed.routes() as routes:
        with pytest.raises(SignalError, match="'p0' and others that are not among the prompts"):
            fit(routed.view.take(range(1, 100)), routes, routed.served)
        with write_routes(tmp_path / "few.parquet", routes.record) as writer:
            for k in range(31):
                writer.add(routes[k].prompt_id, routes[k].prompt_tokens, routes[k].experts)
    with Routes(tmp_path / "few.parquet") as few, pytest.raises(SignalError, match=r"routes of 31 prompts.*32"):
        fit(routed.view, few, routed.served)
