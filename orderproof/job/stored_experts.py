"""The size of an expert as a checkpoint stores it, quantised or not, from the headers of its .safetensors files."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

HEADER_LIMIT_BYTES = 100_000_000  # of the format: https://huggingface.co/docs/safetensors
# `model.layers.3.mlp.experts.17.up_proj.weight_scale_inv` of one expert, or `….mlp.experts.gate_up_proj_blocks` of all
# experts of a layer. Shared experts (`.shared_experts.`) are none of these: every token reads them.
_ROUTED = re.compile(r"^(.*)\.experts\.")


def stored_bytes_per_expert(folder: Path, experts: int) -> int | None:
    """Bytes of a routed expert's tensors, scales and zero points included, as a mean over layers.

    Args:
        experts: of a layer.

    Returns:
        None: there are no .safetensors files with routed experts.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file has no header of the format.
    """
    layers: dict[str, int] = defaultdict(int)
    for path in sorted(folder.glob("*.safetensors")):
        for name, size in tensor_sizes(path).items():
            if routed := _ROUTED.match(name):
                layers[routed[1]] += size
    return round(sum(layers.values()) / (len(layers) * experts)) if layers else None


def tensor_sizes(path: Path) -> dict[str, int]:
    """Bytes of each tensor in a .safetensors file. Raises OSError or ValueError."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > HEADER_LIMIT_BYTES:
            raise ValueError(f"{path} is not a .safetensors file: its header would have {length} bytes")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"{path} is not a .safetensors file: its header is no object")
    return {name: _size(entry) for name, entry in header.items() if name != "__metadata__"}


def _size(entry: object) -> int:
    match entry:
        case {"data_offsets": [int(begin), int(end)]}:
            return end - begin
    raise ValueError("a tensor in the header has no offsets")
