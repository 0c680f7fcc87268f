from __future__ import annotations

import numpy as np
import pytest

from orderproof.tasks.signals import READ_CHARACTERS, features, lexical


def test_rows_have_unit_length_and_products_between_0_and_1() -> None:
    texts = ["Write a function.", "写一首关于春天的诗", "اكتب قصة قصيرة", "Écris une lettre", "a", "\ud800 half a pair"]
    rows = features("lexical", texts)
    assert rows.shape == (6, lexical.BUCKETS)
    assert rows.dtype == np.float32
    products = (rows @ rows.T).toarray()
    assert np.allclose(np.diag(products), 1)
    assert products.min() >= 0
    assert products.max() <= 1 + 1e-5


def test_texts_of_one_language_are_more_alike_than_of_two() -> None:
    rows = features("lexical", ["la maison est dans la ville", "la ville est sur la rivière", "请写一首关于春天的诗"])
    alike = (rows @ rows.T).toarray()
    assert alike[0, 1] > 0.3 > alike[0, 2]


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_a_text_without_letters_is_a_row_of_zeros(text: str) -> None:
    assert features("lexical", [text, "words"]).sum(axis=1).ravel().tolist()[0][0] == 0


def test_no_texts_make_no_rows() -> None:
    assert features("lexical", []).shape == (0, lexical.BUCKETS)


def test_batches_change_nothing_and_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"text number {i}" for i in range(10)]
    whole = features("lexical", texts)
    told: list[tuple[int, int | None]] = []
    monkeypatch.setattr(lexical, "BATCH_TEXTS", 4)
    batched = features("lexical", iter(texts), total=10, progress=lambda done, total: told.append((done, total)))
    assert (whole != batched).nnz == 0
    assert told == [(4, 10), (8, 10), (10, 10)]


def test_only_the_beginning_of_a_huge_text_is_read() -> None:
    huge = "word " * 2_000_000
    rows = features("lexical", [huge, huge[:READ_CHARACTERS]])
    assert (rows[0] != rows[1]).nnz == 0
