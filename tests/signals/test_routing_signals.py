"""`predicted`, `fingerprint` and `observed`: rows that speak of experts."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from orderproof.job.spec import OrderSpec
from orderproof.routing.experts import frequencies
from orderproof.routing.routes_writer import write_routes
from orderproof.signals import registry
from orderproof.signals.predictor import features_of
from orderproof.signals.predictor_file import predictor_of
from orderproof.signals.registry import SignalError
from orderproof.signals.served_model import ServedModel
from tests.support.routed import EXPERTS, LAYERS, Routed, make_routed


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Routed:
    return make_routed(tmp_path_factory.mktemp("routed"))


def rows_of(routed: Routed, signal: str) -> np.ndarray:
    spec = OrderSpec.model_validate({"signal": signal})
    rows: np.ndarray = registry.stack(registry.features(registry.load(spec, routed.served), routed.view))
    return rows


def copied(routed: Routed, folder: Path, **changes: Any) -> None:
    """A part of the capture in another folder, its record changed."""
    assert routed.served.routes is not None
    with routed.routes() as routes:
        record, some = routes.record.model_copy(update=changes), [routes[k] for k in range(40)]
    with write_routes(folder / "routes.parquet", record) as writer:
        for one in some:
            writer.add(one.prompt_id, one.prompt_tokens, one.experts)
    (folder / "predictor.npz").write_bytes(routed.served.routes.with_name("predictor.npz").read_bytes())


def test_predicted_rows_are_the_predictors_decode_frequencies(routed: Routed) -> None:
    predictor = predictor_of(routed.served, "predicted")
    features = features_of(predictor, routed.view, range(100), routed.served)
    assert rows_of(routed, "predicted").tobytes() == predictor.roots(features, "decode").tobytes()


@pytest.mark.parametrize(("signal", "part"), [("fingerprint", "prefill"), ("observed", "decode")])
def test_rows_are_captured_where_routes_are_known_and_predicted_elsewhere(
    routed: Routed, signal: str, part: Literal["prefill", "decode"]
) -> None:
    rows = rows_of(routed, signal)
    assert rows.shape == (100, LAYERS * EXPERTS)
    with routed.routes() as routes:
        for k in (0, 41, 79):
            assert np.allclose(rows[k] ** 2, frequencies(getattr(routes[k], part), EXPERTS), atol=1e-6)
    predictor = predictor_of(routed.served, signal)
    features = features_of(predictor, routed.view, range(80, 100), routed.served)
    assert np.allclose(rows[80:], predictor.roots(features, part), atol=1e-6)


def test_an_id_that_stands_for_another_prompt_brings_no_captured_experts(routed: Routed) -> None:
    """Of two captured ids in a new file one has its old text; the other's experts are predicted."""
    mixed = replace(routed, prompts=[{"id": "p0", "text": routed.prompts[1]["text"]}, routed.prompts[41]])
    observed, predicted, before = rows_of(mixed, "observed"), rows_of(mixed, "predicted"), rows_of(routed, "observed")
    assert np.allclose(observed[0], predicted[0], atol=1e-6)
    assert np.array_equal(observed[1], before[41])
    assert not np.allclose(observed[0], before[0], atol=0.01)
    assert not np.allclose(observed[1], predicted[1], atol=0.01)


def test_routes_that_do_not_say_of_which_texts_they_are_are_told(routed: Routed, tmp_path: Path) -> None:
    copied(routed, tmp_path, texts={})
    with pytest.raises(SignalError, match=r"does not say which texts.*orderproof capture"):
        registry.load(OrderSpec(signal="observed"), replace(routed.served, routes=tmp_path / "routes.parquet"))


def test_the_log_says_how_many_fingerprints_are_captured(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    routed = make_routed(tmp_path)
    with caplog.at_level(logging.INFO):
        rows_of(routed, "fingerprint")
    assert "routes of 80 prompts are captured" in caplog.text


def test_routes_and_predictor_of_different_captures_are_told(routed: Routed, tmp_path: Path) -> None:
    copied(routed, tmp_path, dataset_md5="other")
    with pytest.raises(SignalError, match="of different models or prompts"):
        registry.load(OrderSpec(signal="fingerprint"), replace(routed.served, routes=tmp_path / "routes.parquet"))


def test_torn_routes_are_told(routed: Routed, tmp_path: Path) -> None:
    assert routed.served.routes is not None
    whole = routed.served.routes.read_bytes()
    (tmp_path / "routes.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "predictor.npz").write_bytes(routed.served.routes.with_name("predictor.npz").read_bytes())
    with pytest.raises(SignalError, match="cannot be read as routes"):
        registry.load(OrderSpec(signal="fingerprint"), replace(routed.served, routes=tmp_path / "routes.parquet"))


@pytest.mark.parametrize("signal", ["predicted", "fingerprint", "observed"])
def test_a_model_alone_is_not_enough(routed: Routed, signal: str) -> None:
    with pytest.raises(SignalError, match=f"'{signal}' needs captured routes"):
        registry.load(OrderSpec.model_validate({"signal": signal}), ServedModel(routed.served.model))
