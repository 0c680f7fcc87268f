"""A project with one job `it` on the stand-in engine, whose lossy routing keeps every score."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np

from orderproof.job.spec import Job
from orderproof.lossy.report import LossyReport, lossy_run
from orderproof.lossy.story import Steps, compare_routings
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import tokenize
from orderproof.runs.run import Run
from orderproof.runs.run_store import write_run
from tests.standin.vllm.v1.engine.llm_engine import DRIFTS_FROM, generated
from tests.support.batches import MAX_MODEL_LEN, MAX_TOKENS, edit_job, make_project

PROMPTS, K0 = 384, 2  # the fewest that a trial measures with 16 running at once
MOE = {"num_experts": 16, "num_experts_per_tok": 4, "num_hidden_layers": 1}


def make_lossy_project(root: Path) -> Job:
    """A shuffled file; its references ask for what comes before the tokens that another routing changes."""
    job = make_project(root, PROMPTS, step_ms=1)
    config = json.loads((job.model_path / "config.json").read_text())
    (job.model_path / "config.json").write_text(json.dumps(config | MOE))
    rows = job.prompts_path.read_text().splitlines(keepends=True)
    job.prompts_path.write_text("".join(rows[k] for k in np.random.default_rng(0).permutation(PROMPTS)))
    give_references(job, DRIFTS_FROM)
    return edit_job(job, order={"method": "label"}, measure={"scorer": "contains"})


def give_references(job: Job, tokens: int) -> None:
    """What every second prompt generates, up to so many tokens, and what the others never do."""
    prompts = tokenize(job, read_prompts(job.prompts_path))
    rows = [json.loads(line) for line in job.prompts_path.read_text().splitlines()]
    for k, row in enumerate(rows):
        own = generated(prompts.token_ids(k), MAX_TOKENS, MAX_MODEL_LEN)
        row["reference"] = "nothing of it" if k % 2 else " ".join(map(str, own[:tokens]))
    job.prompts_path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def own_tokens(job: Job) -> list[list[int]]:
    """What the model's own routing gives, in the file's order."""
    texts = [json.loads(line)["text"] for line in job.prompts_path.read_text().splitlines()]
    return [generated(list(text.encode()), MAX_TOKENS, MAX_MODEL_LEN) for text in texts]


def compare(job: Job, k0: int = K0) -> Run:
    """The library's own comparison, kept without MLflow and DVC."""
    steps = Steps(
        validate=lambda job: tokenize(job, read_prompts(job.prompts_path)),
        report=lambda job, compared, inputs, started, _: _keep(job, lossy_run(job, inputs.model, compared, started)),
        accelerator=contextlib.nullcontext,
    )
    return compare_routings(job, k0=k0, run_with=steps)


def report_of(run: Run) -> LossyReport:
    """The comparison that a run is of."""
    return LossyReport.model_validate(run.details)


def _keep(job: Job, run: Run) -> Run:
    write_run(job, run)
    return run
