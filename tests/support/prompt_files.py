"""Prompt files and the errors of reading them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.prompts.prompt import PromptError
from orderproof.prompts.prompt_file import read_prompts

GOOD = b'{"id": "a", "text": "one"}\n'
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def write(folder: Path, content: bytes, name: str = "prompts.jsonl") -> Path:
    """Write a prompt file's bytes."""
    path = folder / name
    path.write_bytes(content)
    return path


def parquet(folder: Path, **columns: Any) -> Path:
    """Write a prompt file of Parquet, in row groups of two."""
    path = folder / "prompts.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def line(**fields: Any) -> bytes:
    """A line of JSON lines."""
    return json.dumps(fields).encode() + b"\n"


def refusal(path: Path) -> PromptError:
    """The error of reading a file: one line that names the file."""
    with pytest.raises(PromptError) as caught:
        list(read_prompts(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value
