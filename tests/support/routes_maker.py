"""Small routes files for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from orderproof.routing.routes import Routes, RoutesRecord
from orderproof.routing.routes_writer import write_routes

RECORD = RoutesRecord(model="5f0c2a9e", dataset_md5="8c5e8f6d", layers=4, experts=64, top_k=4, versions={"vllm": "0"})
PAIR_RECORD = RoutesRecord(model="m", dataset_md5="d", layers=1, experts=8, top_k=2)


def experts_of(tokens: int, record: RoutesRecord, seed: int) -> np.ndarray:
    """[tokens, layers, top_k], distinct within a token and layer."""
    noise = np.random.default_rng(seed).random((tokens, record.layers, record.experts))
    return np.argsort(noise, axis=-1)[..., : record.top_k]


def make_routes(path: Path, prompts: int, record: RoutesRecord = RECORD, **changes: Any) -> dict[str, np.ndarray]:
    """Write routes of prompts p0, p1, …: k + 1 prompt tokens and k decode tokens. Returns their experts by id."""
    record = record.model_copy(update=changes)
    written = {f"p{k}": experts_of(2 * k + 1, record, seed=k) for k in range(prompts)}
    with write_routes(path, record) as writer:
        for k, (prompt_id, experts) in enumerate(written.items()):
            writer.add(prompt_id, k + 1, experts)
    return written


def pair_routes(path: Path, *experts: tuple[int, int], decoded: int = 4) -> Routes:
    """Routes of prompts p0, p1, … of one token, each of which always uses the same two experts."""
    with write_routes(path, PAIR_RECORD) as writer:
        for k, pair in enumerate(experts):
            writer.add(f"p{k}", 1, np.tile(np.array(pair), (1 + decoded, 1, 1)))
    return Routes(path)
