"""A checkpoint's safetensors, written by the library that writes everybody's."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def save_tensors(path: Path, **tensors: Any) -> Path:
    """Write tensors, with `__` for `.` in their names. Returns the folder."""
    import torch
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name.replace("__", "."): torch.as_tensor(value) for name, value in tensors.items()}, path)
    return path.parent
