"""A baseline on real vLLM: the same order gives it again, another order is named and counted."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from orderproof.engines.client import VllmEngine
from orderproof.generate import story
from orderproof.job.spec import EngineSpec
from orderproof.reproduce.record import read_newest
from orderproof.runs.promotion import demote
from tests.conftest import GREEDY
from tests.support.batches import count, generate, make_real_project, promote_label_order, reproduce

pytestmark = pytest.mark.engine
PROMPTS = 40


def test_a_real_engine_reproduces_its_outputs_and_a_demoted_order_is_named(
    tmp_path: Path,
    engine: VllmEngine,
    engine_spec: EngineSpec,
    models: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(*_: Any) -> Any:
        return contextlib.nullcontext(engine)  # the session's, which stays up

    monkeypatch.setattr(story, "start_engine", started)
    texts = [f"prompt {k}: " + "what is it " * (k % 5) for k in range(PROMPTS)]
    job = make_real_project(tmp_path / "p", models["moe"], engine_spec, GREEDY, texts)
    promote_label_order(job)
    generate(job)
    same = reproduce(job)
    assert (same.answer, same.details["changes"], count(same, "identical")) == ("reproduced", [], (PROMPTS,))

    demote(job, [f"p{k}" for k in range(PROMPTS)])
    compared, identical, diverged = count(reproduce(job), "compared", "identical", "diverged")
    newest = read_newest(job)
    assert newest is not None
    assert 'order.method: "label" → "file"' in newest.changes
    assert compared == PROMPTS == identical + diverged
