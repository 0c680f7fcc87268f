"""A model's own embeddings are found and read as torch reads them, whatever the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from orderproof.signals.embedding_table import read_embedding_table
from orderproof.signals.registry import SignalError
from tests.support.checkpoint_file import save_tensors

VALUES = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)


def read(folder: Path) -> np.ndarray:
    return read_embedding_table(folder).rows(slice(None))


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.language_model.embed_tokens.weight",
        "transformer.wte.weight",
        "wte.weight",
        "gpt_neox.embed_in.weight",
        "transformer.word_embeddings.weight",
        "transformer.embedding.word_embeddings.weight",
        "model.tok_embeddings.weight",
        "backbone.embeddings.weight",
        "shared.weight",
        "lm_head.weight",
    ],
)
def test_the_table_is_found_by_every_common_name(tmp_path: Path, name: str) -> None:
    others = {"model.layers.0.mlp.gate.weight": np.ones((90, 8), np.float32), "norm.weight": np.ones(8, np.float32)}
    save_tensors(tmp_path / "model.safetensors", **{name: VALUES}, **others)
    assert read_embedding_table(tmp_path).name == name
    assert np.array_equal(read(tmp_path), VALUES)


@pytest.mark.parametrize(("kind", "digits"), [("float32", 1e-9), ("float16", 1e-3), ("bfloat16", 1e-2)])
def test_every_type_is_read_as_what_torch_reads(tmp_path: Path, kind: str, digits: float) -> None:
    import torch

    stored = torch.as_tensor(VALUES).to(getattr(torch, kind))
    save_tensors(tmp_path / "model.safetensors", model__embed_tokens__weight=stored)
    rows = read(tmp_path)
    assert rows.dtype == np.float32
    assert np.array_equal(rows, stored.float().numpy())
    assert np.allclose(rows, VALUES, rtol=digits)


def test_only_the_shard_that_the_index_names_is_opened(tmp_path: Path) -> None:
    save_tensors(tmp_path / "model-00002-of-00002.safetensors", model__embed_tokens__weight=VALUES)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"not opened")
    placed = {
        "model.embed_tokens.weight": "model-00002-of-00002.safetensors",
        "model.layers.0.mlp.gate.weight": "model-00001-of-00002.safetensors",
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    assert np.array_equal(read(tmp_path), VALUES)


def test_an_index_never_leads_out_of_the_folder(tmp_path: Path) -> None:
    save_tensors(tmp_path / "elsewhere" / "model.safetensors", model__embed_tokens__weight=VALUES)
    folder = save_tensors(tmp_path / "here" / "other.safetensors", norm=np.ones(8, np.float32))
    placed = {"model.embed_tokens.weight": "../elsewhere/model.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    with pytest.raises(SignalError, match=r"here/model\.safetensors: not readable"):
        read(folder)


def test_of_several_tables_the_vocabularys_is_the_longest(tmp_path: Path) -> None:
    few = np.zeros((6, 8), np.float32)
    save_tensors(
        tmp_path / "model.safetensors",
        audio__embed_tokens__weight=few,
        text__embed_tokens__weight=VALUES,
        x__wte__weight=np.zeros((99, 8), np.float32),
    )
    assert read_embedding_table(tmp_path).name == "text.embed_tokens.weight"


def test_a_checkpoint_without_a_table_is_told_with_what_to_use_instead(tmp_path: Path) -> None:
    save_tensors(tmp_path / "model.safetensors", model__layers__0__weight=VALUES)
    with pytest.raises(SignalError, match=r"no tensor of its safetensors is an input embedding.*signal: lexical"):
        read(tmp_path)


def test_a_quantised_table_is_told(tmp_path: Path) -> None:
    save_tensors(tmp_path / "model.safetensors", model__embed_tokens__weight=(VALUES * 9).astype(np.int8))
    with pytest.raises(SignalError, match=r"embed_tokens\.weight is stored as I8"):
        read(tmp_path)


def test_a_folder_without_safetensors_and_a_missing_one_are_told(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(SignalError, match=r"holds no \.safetensors"):
        read(tmp_path)
    with pytest.raises(SignalError, match="no such folder"):
        read(tmp_path / "none")


def test_a_torn_file_is_told_wherever_it_is_torn(tmp_path: Path) -> None:
    path = save_tensors(tmp_path / "model.safetensors", model__embed_tokens__weight=VALUES) / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 5, 40, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(SignalError, match=r"model\.safetensors: (not readable|cut off).*Download it again"):
            read(tmp_path)


@pytest.mark.parametrize("header", [b"[]", b'{"a": 1}', b'{"embed_tokens.weight": {"dtype": "F32"}}', b"nonsense"])
def test_a_header_that_describes_no_tensors_is_told(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(SignalError, match="not readable as safetensors"):
        read(tmp_path)
