"""An accepted lossy routing on real vLLM: its outputs are others, the model's own come back without it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orderproof.engines.routing_engine import RoutingEngine
from orderproof.generate.delivery import OUTPUTS_FILE
from orderproof.job.hashing import md5_of
from orderproof.job.model import read_model
from orderproof.job.spec import EngineSpec, Job
from orderproof.lossy.comparison import compare_lossy
from orderproof.lossy.order import order_to_compare
from orderproof.lossy.report import write_page
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import tokenize
from tests.conftest import GREEDY
from tests.lossy.test_acceptance import edited
from tests.support.batches import make_real_project, promote_label_order, recorded_batch

pytestmark = [pytest.mark.engine, pytest.mark.long]
PROMPTS, K0, BLOCKS = 320, 1, 5
PATTERNS = (".*", "(?!)")  # every output, none: half of them match, and what a score is worth is not asked here


def outputs(job: Job) -> list[list[int]]:
    found: list[list[int]] = pq.read_table(job.data_dir / OUTPUTS_FILE)["token_ids"].to_pylist()
    return found


def test_real_vllm_generates_with_the_routing_that_was_accepted(
    tmp_path: Path, engine_spec: EngineSpec, models: dict[str, Path]
) -> None:
    texts = [f"prompt {k}: " + "what is it " * (k % 5) for k in range(PROMPTS)]
    job = make_real_project(tmp_path / "p", models["moe"], engine_spec, GREEDY, texts)
    rows = [json.loads(line) for line in job.prompts_path.read_text().splitlines()]
    rows = [row | {"reference": PATTERNS[k % 2]} for k, row in enumerate(rows)]
    job.prompts_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = edited(job, order={"method": "label"}, measure={"scorer": "regex"})
    promote_label_order(job)
    recorded_batch(job)
    own = outputs(job)

    model, prompts = read_model(job.model_path, job.model), tokenize(job, read_prompts(job.prompts_path))
    with RoutingEngine(job.engine, job.model_path, job.sampling, job.root / "routing.log") as engine:
        order = order_to_compare(job, prompts, md5_of(job.prompts_path))
        write_page(job, compare_lossy(job, model, prompts, order, engine, K0, BLOCKS))
    accepted = edited(job, accept_lossy={"k0": K0})
    run = recorded_batch(accepted)[2]
    changed = sum(now != before for now, before in zip(outputs(job), own, strict=True))
    assert (run.lossy_k0, run.order.method, run.failed) == (K0, "label", 0)
    assert changed > PROMPTS / 10, "one expert of a token's own changes what it generates"

    assert recorded_batch(edited(job, accept_lossy=None))[2].lossy_k0 is None
    assert outputs(job) == own
