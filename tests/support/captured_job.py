"""A job that can be looked at before it is spent on: prompts, a model's files, captured routes and fitted costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from orderproof.capture.calibration import Calibration, Fit
from orderproof.capture.step_cost_store import StoredCosts, write_costs
from orderproof.job.hashing import md5_of
from orderproof.job.model import ModelFacts, read_model
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.routing.routes import Routes
from orderproof.routing.routes_writer import write_routes
from orderproof.routing.step_costs import StepCosts
from orderproof.signals.served_model import ROUTES_FILE
from tests.support.routed import make_routed

NAME, BATCH = "it", 8
COSTS = StepCosts((BATCH,), (1.0,), 0.1, "a test")
FIT = Fit(COSTS, steps=400, r_squared=0.9, residual=0.02, expert_ms_error=0.002)


def make_job(root: Path, captured: int = 160, others: int = 0, **changes: Any) -> Job:
    """Write a project with one job; `changes` replace whole fields of it."""
    make_routed(root / "data" / NAME, captured, others)
    job = {
        "prompts": f"data/{NAME}/prompts.jsonl",
        "model": f"data/{NAME}/model",
        "engine": {"args": {"max_num_seqs": BATCH}},
        "sampling": {"temperature": 0.0, "max_tokens": 13, "ignore_eos": True},
        "order": {"method": "label"},
        **changes,
    }
    YAML(typ="safe", pure=True).dump({"defaults": {}, "jobs": {NAME: job}}, root / "params.yaml")
    return load_job(root / "params.yaml", NAME)


def model_of(job: Job) -> ModelFacts:
    return read_model(job.model_path, job.model)


def calibrated(job: Job) -> StoredCosts:
    return write_costs(job, model_of(job), Calibration(FIT, expert_ms_of_bandwidth=0.05))


def recaptured(job: Job) -> None:
    """The same routes as of the prompts' file as it is now."""
    path = job.data_dir / ROUTES_FILE
    with Routes(path) as routes:
        record, kept = routes.record, list(routes)
    record = record.model_copy(update={"dataset_md5": md5_of(job.prompts_path)})
    with write_routes(path, record) as writer:
        for prompt in kept:
            writer.add(prompt.prompt_id, prompt.prompt_tokens, prompt.experts)
