"""A baseline on real vLLM: the same order gives it again, another order is named and counted."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from orderproof.engines.client import VllmEngine
from orderproof.job.spec import EngineSpec
from orderproof.runs.promotion import demote
from tests.conftest import GREEDY
from tests.support.batches import make_real_project, promote_label_order, reproduce, run_batch

pytestmark = pytest.mark.engine
PROMPTS = 40


def test_a_real_engine_reproduces_its_outputs_and_a_demoted_order_is_named(
    tmp_path: Path, engine: VllmEngine, engine_spec: EngineSpec, models: dict[str, Path]
) -> None:
    texts = [f"prompt {k}: " + "what is it " * (k % 5) for k in range(PROMPTS)]
    job = make_real_project(tmp_path / "p", models["moe"], engine_spec, GREEDY, texts)
    promote_label_order(job)
    started = lambda job: contextlib.nullcontext(engine)  # noqa: E731  (the session's, which stays up)
    run_batch(job, start=started)
    same = reproduce(job, start=started)
    assert (same.answer, same.changes, same.outputs.identical) == ("reproduced", (), PROMPTS)

    demote(job, [f"p{k}" for k in range(PROMPTS)])
    other = reproduce(job, start=started)
    assert 'order.method: "label" → "file"' in other.changes
    assert other.outputs.compared == PROMPTS == other.outputs.identical + other.outputs.diverged
