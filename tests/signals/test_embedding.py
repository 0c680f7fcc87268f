"""Embeddings are the library's own vectors, the same bits on any number of cores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orderproof.signals import embedding
from orderproof.signals.embedding import PACKAGED, features
from orderproof.signals.registry import SignalError

TEXTS = [f"{verb} a {noun}" for verb in ("Write", "Explain", "Sort") for noun in ("poem", "list", "proof")] + [
    "",
    "一首诗",
]


def test_rows_are_unit_float32_in_the_order_of_the_texts() -> None:
    rows = features(TEXTS)
    assert rows.shape == (len(TEXTS), 384)
    assert rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    alone = np.concatenate([features([text]) for text in TEXTS[:2]])
    assert np.allclose(rows[:2], alone, atol=1e-4)


def test_the_vectors_are_the_librarys_own() -> None:
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(embedding._location(PACKAGED), device="cpu").encode(TEXTS, normalize_embeddings=True)
    assert np.allclose(features(TEXTS), theirs, atol=1e-4)


def test_the_number_of_cores_does_not_move_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    texts = [text * (1 + i % 5) for i, text in enumerate(TEXTS * 8)]
    before, rows = torch.get_num_threads(), []
    for workers in (1, 4):
        monkeypatch.setattr(embedding, "_workers", lambda workers=workers: workers)
        rows.append(features(texts))
    assert rows[0].tobytes() == rows[1].tobytes()
    assert torch.get_num_threads() == before


def test_no_texts_make_no_rows() -> None:
    assert features([]).shape == (0, 384)


def test_a_missing_folder_is_named() -> None:
    with pytest.raises(SignalError, match="no such folder"):
        features(["a"], "./models/none")


def test_an_unknown_hub_id_offline_is_one_message() -> None:
    with pytest.raises(
        SignalError, match=r"'nobody/no-such-model' cannot be loaded.*hf download nobody/no-such-model"
    ) as refusal:
        features(["a"], "nobody/no-such-model")
    assert "\n" not in str(refusal.value)


def test_a_folder_that_holds_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(SignalError, match="cannot be loaded"):
        features(["a"], str(tmp_path))
