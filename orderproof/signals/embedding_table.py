"""A checkpoint's input embeddings, read from its safetensors without loading any other tensor and without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes as ml_dtypes  # registers bfloat16, which numpy does not have
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from orderproof.signals.registry import SignalError

INDEX = "model.safetensors.index.json"
# How the names of published checkpoints' input embeddings end: Llama, Qwen, Mistral, DeepSeek, Gemma; GPT-2, MPT, DBRX;
# GPT-NeoX; Falcon, BLOOM, ChatGLM; InternLM 2, Llama's original format; Mamba, Jamba; T5. `lm_head` is the same matrix
# where only one of two tied ones is saved. The first of these endings that a checkpoint has counts.
ENDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "backbone.embeddings.weight",
    "backbone.embedding.weight",
    "shared.weight",
    "lm_head.weight",
)
DTYPES = ("F64", "F32", "F16", "BF16")  # any other type is quantised: its numbers need scales from elsewhere
ALTERNATIVE = "Use `signal: lexical`, which needs no model, or `embedding`"


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """One row per token of the vocabulary."""

    name: str  # of the tensor
    stored: Any  # gives rows by slices: a numpy array, or safetensors' view of a file
    shape: tuple[int, int]  # vocabulary, hidden size

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, rows: slice) -> NDArray[np.float32]:
        """float32[rows, hidden size]: some of the rows, read from the disk."""
        part: NDArray[np.float32] = self.stored[slice(*rows.indices(len(self)))].astype(np.float32)
        return part


def read_embedding_table(folder: Path) -> EmbeddingTable:
    """Find the table in a checkpoint's folder; its rows stay on the disk.

    Raises:
        SignalError: no safetensors, none with such a table, or a table that is damaged or quantised.
    """
    tables = {name: (path, shape) for path in _files(folder) for name, shape in _matrices(path)}
    for ending in ENDINGS:
        # A model that also takes images or sound has several; the vocabulary's is the longest.
        names = [name for name in tables if f".{name}".endswith(f".{ending}")]
        if names:
            name = max(names, key=lambda name: (tables[name][1][0], name))
            path, shape = tables[name]
            return EmbeddingTable(name, _view(path, name), shape)
    raise SignalError(
        f"{folder}: no tensor of its safetensors is an input embedding table (a name that ends in {ENDINGS[0]}, "
        f"{ENDINGS[1]} or similar), so the signal `token` cannot be computed. {ALTERNATIVE}"
    )


def _files(folder: Path) -> list[Path]:
    """The files that may hold a table: by the index if there is one, since a checkpoint may have a hundred shards."""
    if not folder.is_dir():
        raise SignalError(f"{folder}: there is no such folder. Give the folder of the served model")
    index = folder / INDEX
    if index.is_file():
        try:
            file_of: dict[str, str] = json.loads(index.read_text("utf-8"))["weight_map"]
            names = {file for tensor, file in file_of.items() if tensor.endswith(ENDINGS)}
        except (ValueError, KeyError, AttributeError, OSError) as error:
            raise SignalError(f"{index}: not readable as an index of weights ({error}). Download it again") from None
        return sorted(folder / Path(name).name for name in names)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise SignalError(
            f"{folder}: holds no .safetensors, and the signal `token` reads no other weights. {ALTERNATIVE}"
        )
    return files


def _matrices(path: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Names and shapes of the two-dimensional tensors that may be a table."""
    file = _open(path)
    for name in file.keys():  # noqa: SIM118 (a file is not iterable)
        if name.endswith(ENDINGS):
            shape = tuple(file.get_slice(name).get_shape())
            if len(shape) == 2:
                yield name, shape


def _view(path: Path, name: str) -> Any:
    view = _open(path).get_slice(name)
    if view.get_dtype() not in DTYPES:
        raise SignalError(
            f"{path}: {name} is stored as {view.get_dtype()}, which is a quantised type; the signal `token` reads "
            f"{', '.join(DTYPES)}. {ALTERNATIVE}"
        )
    return view


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        raise SignalError(f"{path}: not readable as safetensors ({error}). Download it again") from None
