"""An accepted lossy routing on real vLLM: its outputs are others, the model's own come back without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orderproof.job.spec import EngineSpec, Job
from orderproof.lossy.story import compare_routings
from tests.conftest import GREEDY
from tests.support.batches import edit_job, generate, make_real_project, outputs, promote_label_order

pytestmark = [pytest.mark.engine, pytest.mark.long]
PROMPTS, K0, BLOCKS = 320, 1, 5
PATTERNS = (".*", "(?!)")  # every output, none: half of them match, and what a score is worth is not asked here


def tokens(job: Job) -> list[list[int]]:
    return [row["token_ids"] for row in outputs(job)]


@pytest.mark.usefixtures("no_tracker")
def test_real_vllm_generates_with_the_routing_that_was_accepted(
    tmp_path: Path, engine_spec: EngineSpec, models: dict[str, Path]
) -> None:
    texts = [f"prompt {k}: " + "what is it " * (k % 5) for k in range(PROMPTS)]
    job = make_real_project(tmp_path / "p", models["moe"], engine_spec, GREEDY, texts)
    rows = [json.loads(line) for line in job.prompts_path.read_text().splitlines()]
    rows = [row | {"reference": PATTERNS[k % 2]} for k, row in enumerate(rows)]
    job.prompts_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = edit_job(job, order={"method": "label"}, measure={"scorer": "regex"})
    promote_label_order(job)
    generate(job)
    own = tokens(job)

    compare_routings(job, k0=K0, blocks=BLOCKS)
    run = generate(edit_job(job, accept_lossy={"k0": K0}))
    changed = sum(now != before for now, before in zip(tokens(job), own, strict=True))
    assert run.basis.order is not None
    assert (run.basis.lossy_k0, run.basis.order.method, run.figure("failed")) == (K0, "label", 0)
    assert changed > PROMPTS / 10, "one expert of a token's own changes what it generates"

    assert generate(edit_job(job, accept_lossy=None)).basis.lossy_k0 is None
    assert tokens(job) == own
