"""Prompts of four domains, dealt in turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.row_files import write_rows

WORDS = {
    "code": "def return list function python loop string index class import test value array sort key",
    "cooking": "soup onion butter oven simmer taste garlic pepper plate bread flour roast sauce lemon salt",
    "french": "bonjour voyage maison écrire lettre français demain ville rivière petit toujours jardin été",
    "chinese": "请 写 一首 关于 春天 的 诗 解释 历史 城市 河流 学习 数学 故事 朋友",
}


@pytest.fixture(scope="session")
def some_prompts() -> Callable[..., list[dict[str, Any]]]:
    """Makes n prompts, no two alike, labelled; shuffled unless told otherwise."""

    def make(n: int, *, seed: int = 0, shuffled: bool = True) -> list[dict[str, Any]]:
        random = np.random.default_rng(seed)
        labels = [label for label in WORDS for _ in range(-(-n // len(WORDS)))][:n]
        if shuffled:
            random.shuffle(labels)
        return [
            {"id": f"p{i}", "label": label, "text": f"{' '.join(words)} {i}"}
            for i, label in enumerate(labels)
            for words in [random.choice(WORDS[label].split(), random.integers(6, 30))]
        ]

    return make


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows = [{"id": f"p{i}", "text": "word " * (1 + 7 * i % 20), "label": "ab"[i % 2]} for i in range(20)]
    return write_rows(tmp_path / "prompts.jsonl", rows)
