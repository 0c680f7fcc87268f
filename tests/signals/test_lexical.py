"""Texts are compared by their letters alone, in chunks, and huge ones by their beginning."""

from __future__ import annotations

import numpy as np
import pytest

from orderproof.job.spec import OrderSpec
from orderproof.orders.view import view_of
from orderproof.signals import lexical, registry
from orderproof.signals.lexical import features
from orderproof.signals.registry import READ_CHARACTERS
from orderproof.signals.served_model import UNKNOWN_MODEL


def test_rows_have_unit_length_and_products_between_0_and_1() -> None:
    texts = ["Write a function.", "写一首关于春天的诗", "اكتب قصة قصيرة", "Écris une lettre", "a", "\ud800 half a pair"]
    rows = features(texts)
    assert rows.shape == (6, lexical.BUCKETS)
    assert rows.dtype == np.float32
    products = (rows @ rows.T).toarray()
    assert np.allclose(np.diag(products), 1)
    assert products.min() >= 0
    assert products.max() <= 1 + 1e-5


def test_texts_of_one_language_are_more_alike_than_of_two() -> None:
    rows = features(["la maison est dans la ville", "la ville est sur la rivière", "请写一首关于春天的诗"])
    alike = (rows @ rows.T).toarray()
    assert alike[0, 1] > 0.3 > alike[0, 2]


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_a_text_without_letters_is_a_row_of_zeros(text: str) -> None:
    assert features([text, "words"]).sum(axis=1).ravel().tolist()[0][0] == 0


def test_no_texts_make_no_rows() -> None:
    assert features([]).shape == (0, lexical.BUCKETS)


def test_the_products_are_those_of_the_librarys_own_trigrams_within_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sklearn.feature_extraction.text import CountVectorizer

    monkeypatch.setattr(lexical, "BUCKETS_LOG2", 22)  # so many that no two trigrams of these share one
    monkeypatch.setattr(lexical, "BUCKETS", 1 << 22)
    texts = ["Write a  function!\n", "functions that write", "a b", "写一首关于春天的诗", "Écris UNE lettre"]
    counts = CountVectorizer(analyzer="char_wb", ngram_range=(3, 3)).fit_transform(texts).toarray()
    roots = np.sqrt(counts / counts.sum(axis=1, keepdims=True))
    rows = features(texts)
    assert np.allclose((rows @ rows.T).toarray(), roots @ roots.T, atol=1e-6)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of([f"text number {i}" for i in range(10)])
    signal = registry.load(OrderSpec(signal="lexical"), UNKNOWN_MODEL)
    whole = registry.stack(registry.features(signal, view))
    monkeypatch.setattr(registry, "CHUNK_PROMPTS", 4)
    chunks = registry.features(signal, view)
    assert (whole != registry.stack(chunks)).nnz == 0


def test_only_the_beginning_of_a_huge_text_is_read() -> None:
    huge = "word " * 2_000_000
    signal = registry.load(OrderSpec(signal="lexical"), UNKNOWN_MODEL)
    rows = signal(view_of([huge, huge[:READ_CHARACTERS]]), range(2))
    assert (rows[0] != rows[1]).nnz == 0
