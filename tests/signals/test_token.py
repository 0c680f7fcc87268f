"""A prompt is the sum of its tokens' embeddings, by the served model's own tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from orderproof.job.spec import OrderSpec
from orderproof.orders.registry import expert_friendly_order
from orderproof.orders.view import PromptView, view_of
from orderproof.prompts.prompt import Prompt
from orderproof.prompts.tokenization import tokenize
from orderproof.signals import registry, token
from orderproof.signals.embedding_table import EmbeddingTable
from orderproof.signals.registry import SignalError
from orderproof.signals.served_model import UNKNOWN_MODEL, ServedModel
from orderproof.signals.token import leading_directions, mean_embeddings
from tests.support.checkpoint_file import save_tensors
from tests.support.tiny_tokenizer import job_of, save_model

TABLE = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
BY_TOKENS = OrderSpec(signal="token")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A served model's folder: a byte-level tokenizer and an embedding table."""
    save_tensors(tmp_path / "model" / "model.safetensors", model__embed_tokens__weight=TABLE)
    save_model(tmp_path / "model")
    return tmp_path / "model"


def rows_of(view: PromptView, served: ServedModel) -> np.ndarray:
    rows: np.ndarray = registry.stack(registry.features(registry.load(BY_TOKENS, served), view))
    return rows


def test_a_row_is_the_embeddings_sum_by_root_counts_at_unit_length() -> None:
    row = mean_embeddings([[5, 7, 5, 5, 5]], TABLE)[0]
    wanted = 2 * TABLE[5] + TABLE[7]
    assert row.dtype == np.float32
    assert np.allclose(row, wanted / np.linalg.norm(wanted), atol=1e-6)


def test_tokens_in_any_order_make_the_same_row_and_other_prompts_change_nothing() -> None:
    one, other, empty = mean_embeddings([[1, 2, 3, 2], [2, 2, 3, 1], []], TABLE)
    assert np.allclose(one, other, atol=1e-6)
    assert not empty.any()
    assert mean_embeddings([[1, 2, 3, 2]], TABLE)[0].tobytes() == one.tobytes()


def test_texts_are_read_by_the_models_own_tokenizer(model: Path) -> None:
    rows = rows_of(view_of(["ab", "ba", "no", ""]), ServedModel(model))
    assert rows.shape == (4, 16)
    assert np.allclose(rows[0], rows[1], atol=1e-6)
    assert rows[0] @ rows[2] < 0.9
    assert not rows[3].any()


def test_prompts_that_are_tokenized_already_are_taken_as_they_are(model: Path, tmp_path: Path) -> None:
    job = job_of(tmp_path / "p.jsonl", model)
    tokenized = tokenize(job, [Prompt("a", "some text"), Prompt("b", "another")])
    rows = rows_of(view_of(tokenized, ServedModel.of_job(job)), ServedModel.of_job(job))
    ids = [tokenized.token_ids(i) for i in range(2)]
    assert rows.tobytes() == mean_embeddings(ids, TABLE).tobytes()


def test_a_model_is_needed(model: Path) -> None:
    with pytest.raises(SignalError, match=r"--model FOLDER.*lexical"):
        registry.load(BY_TOKENS, UNKNOWN_MODEL)
    order = expert_friendly_order(["ab", "no", "ba"], signal="token", model=model, clusters=2)
    assert order.parameters == {"clusters": 2, "signal": "token"}
    assert np.abs(np.diff(order.inverse()[[0, 2]])) == 1


def test_another_models_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    save_tensors(tmp_path / "short" / "model.safetensors", model__embed_tokens__weight=TABLE[:20])
    with pytest.raises(SignalError, match=r"has 20 rows, and a prompt has the token id .* another model's"):
        rows_of(view_of(["some text"]), ServedModel(tmp_path / "short", model))


def test_a_folder_without_a_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{}")
    for folder in ("bare", "broken"):
        with pytest.raises(SignalError, match=f"{folder}: holds no usable tokenizer"):
            rows_of(view_of(["some text"]), ServedModel(model, tmp_path / folder))


def test_a_wide_table_keeps_the_directions_in_which_its_rows_differ() -> None:
    random = np.random.default_rng(1)
    wide = (random.normal(size=(400, 20)) @ random.normal(size=(20, 512))).astype(np.float32)
    narrow = leading_directions(EmbeddingTable("wide", wide, wide.shape))
    assert narrow.shape == (400, token.DIMENSIONS)
    assert np.allclose(narrow @ narrow.T, wide @ wide.T, rtol=1e-3, atol=1)


def test_the_number_of_threads_does_not_move_a_bit() -> None:
    from threadpoolctl import threadpool_limits

    rows = np.random.default_rng(1).normal(size=(2000, 512)).astype(np.float32)
    wide = EmbeddingTable("wide", rows, (2000, 512))
    made = []
    for threads in (1, 3):
        with threadpool_limits(threads):
            made.append(leading_directions(wide).tobytes())
    assert made[0] == made[1]


def test_bfloat16_rows_in_blocks_are_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token, "BLOCK_TOKENS", 7)
    stored = TABLE.astype(ml_dtypes.bfloat16)
    table = leading_directions(EmbeddingTable("short", stored, TABLE.shape))
    assert np.array_equal(table, stored.astype(np.float32))


def test_padding_and_truncation_in_a_tokenizers_file_count_for_nothing_as_in_the_engine(model: Path) -> None:
    from tokenizers import Tokenizer

    before = rows_of(view_of(["ab", "a longer text than that"]), ServedModel(model))
    shutil.copytree(model, model.with_name("padding"))
    changed = Tokenizer.from_file(str(model / "tokenizer.json"))
    changed.enable_padding(length=64)
    changed.enable_truncation(3)
    padding = model.with_name("padding")
    changed.save(str(padding / "tokenizer.json"))
    assert rows_of(view_of(["ab", "a longer text than that"]), ServedModel(padding)).tobytes() == before.tobytes()


def test_a_token_whose_embedding_is_no_number_spoils_the_prompts_that_have_it_alone() -> None:
    wide = np.random.default_rng(1).normal(size=(400, 512)).astype(np.float32)
    wide[7, 3] = np.nan
    rows = mean_embeddings([[1, 2], [7, 2]], leading_directions(EmbeddingTable("wide", wide, wide.shape)))
    assert np.isfinite(rows[0]).all()
    assert not np.isfinite(rows[1]).any()


def test_a_wide_table_without_a_number_is_refused() -> None:
    with pytest.raises(SignalError, match="embedding table broken holds no finite numbers"):
        leading_directions(EmbeddingTable("broken", np.full((400, 512), np.nan, np.float32), (400, 512)))
