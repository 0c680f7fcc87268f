"""A checkpoint's input embeddings, read straight from its safetensors: one tensor, mapped, nothing else loaded.

In: a model's folder. Out: an `EmbeddingTable`, which gives rows as float32; or a `SignalError`. Needs no torch and runs
no code of the model. The format: 8 bytes of length, a JSON header, then the tensors' bytes, little-endian.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.signals.registry import SignalError

INDEX = "model.safetensors.index.json"
# How the names of published checkpoints' input embeddings end: Llama, Qwen, Mistral, DeepSeek, Gemma; GPT-2, MPT, DBRX;
# GPT-NeoX; Falcon, BLOOM, ChatGLM; InternLM 2, Llama's own; Mamba, Jamba; T5. `lm_head` is the same matrix where only
# one of two tied ones is saved. The first of these endings that a checkpoint has counts.
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
TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # numpy has no bfloat16: its bits are the upper half of a float32
METADATA = "__metadata__"  # beside the tensors in a header
HEADER_LIMIT_BYTES = 100 << 20  # as the format's own library has it


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """One row per token of the vocabulary."""

    name: str  # of the tensor
    stored: NDArray[Any]  # [vocabulary, hidden], mapped from the file; uint16 for bfloat16

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def width(self) -> int:
        """The model's hidden size."""
        return int(self.stored.shape[1])

    def rows(self, which: slice) -> NDArray[np.float32]:
        """float32[rows, width]: some of them, read from the disk."""
        part = self.stored[which]
        if part.dtype != np.uint16:
            return part.astype(np.float32)
        return (part.astype(np.uint32) << 16).view(np.float32)


def read_embedding_table(folder: Path) -> EmbeddingTable:
    """Find and map the table.

    Raises:
        SignalError: no safetensors, none with a table in it, or one that is torn or quantised.
    """
    tensors = _tensors(folder)
    for ending in ENDINGS:
        # A model that also sees or hears has several: that of its vocabulary is the longest.
        found = [(entry["shape"][0], name) for name, (_, _, entry) in tensors.items() if _is_table(name, entry, ending)]
        if found:
            name = max(found)[1]
            path, start, entry = tensors[name]
            return EmbeddingTable(name, _mapped(path, start, name, entry))
    raise SignalError(
        f"{folder}: no tensor of its safetensors is an input embedding table (named …{ENDINGS[0]}, …{ENDINGS[1]} or "
        f"the like), so the signal `token` cannot be taken. {_OTHERWISE}"
    )


_OTHERWISE = "Use `signal: lexical`, which needs no model, or `embedding`"


def _is_table(name: str, entry: Mapping[str, Any], ending: str) -> bool:
    return f".{name}".endswith(f".{ending}") and len(entry["shape"]) == 2


def _tensors(folder: Path) -> dict[str, tuple[Path, int, Mapping[str, Any]]]:
    """Name → file, where its tensors begin, and the tensor's entry in the header."""
    if not folder.is_dir():
        raise SignalError(f"{folder}: there is no such folder. Name that of the served model")
    found: dict[str, tuple[Path, int, Mapping[str, Any]]] = {}
    for path in _files(folder):
        header, start = _header(path)
        found |= {name: (path, start, entry) for name, entry in header.items() if name != METADATA}
    return found


def _files(folder: Path) -> list[Path]:
    """Those which the index says hold a table, so that a hundred others are not opened; without an index all."""
    index = folder / INDEX
    if index.is_file():
        try:
            placed: dict[str, str] = json.loads(index.read_text("utf-8"))["weight_map"]
            names = {file for name, file in placed.items() if name.endswith(ENDINGS)}
        except (ValueError, KeyError, AttributeError, OSError) as error:
            raise SignalError(f"{index}: not readable as an index of weights ({error}). Download it again") from None
        return sorted(folder / Path(name).name for name in names)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise SignalError(
            f"{folder}: holds no .safetensors, and the signal `token` reads no other weights. {_OTHERWISE}"
        )
    return files


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The description of a file's tensors, and where their bytes begin."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= HEADER_LIMIT_BYTES:
                raise ValueError(f"a header of {length} bytes")
            header: dict[str, Any] = json.loads(file.read(length))
        if not all({"dtype", "shape", "data_offsets"} <= header[name].keys() for name in header.keys() - {METADATA}):
            raise ValueError("a tensor without type, shape or place")
    except (OSError, ValueError, AttributeError) as error:
        raise SignalError(f"{path}: not readable as safetensors ({error}). Download it again") from None
    return header, 8 + length


def _mapped(path: Path, start: int, name: str, entry: Mapping[str, Any]) -> NDArray[Any]:
    kind, shape = TYPES.get(entry["dtype"]), tuple(entry["shape"])
    if kind is None:
        raise SignalError(
            f"{path}: {name} is stored as {entry['dtype']}, and only {', '.join(TYPES)} are read: it is quantised. "
            + _OTHERWISE
        )
    try:
        return np.memmap(path, kind, "r", start + entry["data_offsets"][0], shape)
    except (OSError, ValueError) as error:
        raise SignalError(f"{path}: cut off before the end of {name} ({error}). Download it again") from None
