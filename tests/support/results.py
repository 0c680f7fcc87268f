"""Results, orders and checkpoints of a few prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from orderproof.engines.protocol import Completion
from orderproof.generate.checkpoint import Checkpoint, open_checkpoint
from orderproof.generate.checkpoint_folder import FOLDER
from orderproof.generate.result import Result
from orderproof.orders.order import Order

KEY = {"dataset_md5": "a", "engine": {"args": {"max_num_seqs": 8}, "env": {}}, "sampling": {}}


def make_order(count: int = 6, seed: int = 1) -> Order:
    return Order(np.random.default_rng(seed).permutation(count), "shuffled", {}, {"shuffle": seed}, "a")


def make_result(place: int, **changes: Any) -> Result:
    """Two samples, with text that a line-based format could break."""
    completions = (Completion([place, 7], f"été {place}\n\u2028", "stop", "\n"), Completion([], "", "length"))
    fields: dict[str, Any] = {"id": f"p{place}", "prompt_tokens": 3, "asked_tokens": 2, "asked_samples": 2,
                              "completions": completions}  # fmt: skip
    return Result(place, **{**fields, **changes})


def open_at(root: Path, key: Any = KEY, order: Order | None = None, *, restart: bool = False) -> Checkpoint:
    """The checkpoint in a job's folder."""
    return open_checkpoint(root / FOLDER, key, order or make_order(), restart=restart)
