"""Records of runs that no verb has made."""

from __future__ import annotations

from typing import Any

from orderproof.job.paths import Verb
from orderproof.job.spec import Job
from orderproof.orders.order_record import OrderRecord
from orderproof.runs.run import Basis, Figure, Run

ORDER = OrderRecord(method="label", parameters={"window": 8}, dataset_md5="a", sha256="b")
NOON = "2026-11-29T12:00:00+00:00"
RUN_ID = "20261129T144640Z-3f9a"


def make_run(lossy_k0: int | None = None, **changes: Any) -> Run:
    """A generation of the job `it` in label order; `changes` replace whole fields."""
    basis = Basis(
        prompts="data/it/prompts.jsonl",
        dataset_md5="a",
        prompts_total=1,
        model="m",
        model_fingerprint="f",
        order=ORDER,
        order_reason="it was promoted",
        lossy_k0=lossy_k0,
    )
    fields: dict[str, Any] = {
        "job": "it",
        "verb": "generate",
        "id": "20261129T120000Z-3f9a",
        "started_utc": NOON,
        "ended_utc": NOON,
        "answer": "complete",
        "sentence": "it: one output",
        "basis": basis,
    }
    return Run.model_validate({**fields, **changes})


def make_job_run(job: Job, run_id: str = RUN_ID, verb: Verb = "generate", **changes: Any) -> Run:
    """A run of a job; `changes` replace whole fields."""
    fields: dict[str, Any] = {
        "job": job.name,
        "verb": verb,
        "id": run_id,
        "started_utc": "2026-11-29T14:46:40+00:00",
        "ended_utc": "2026-11-29T14:56:40+00:00",
        "answer": "complete",
        "sentence": "six-domains: 48 of 48 prompts generated",
        "basis": make_basis(job),
        "figures": (
            Figure(name="gain", value=0.06, low=0.05, high=0.07),
            Figure(name="wall_s", value=600.0),
            Figure(name="saved_s", value=None),
        ),
    }
    return Run(**{**fields, **changes})


def make_basis(job: Job, **changes: Any) -> Basis:
    """What a run rests on; `changes` replace whole fields."""
    fields: dict[str, Any] = {
        "prompts": job.prompts,
        "dataset_md5": "8c5e8f6d2b1a4f0e9d7c6b5a49382716",
        "prompts_total": 48,
        "model": job.model,
        "model_fingerprint": "5f0c2a9e71d4b836",
        "order": OrderRecord(method="label", parameters={}, seeds={}, dataset_md5="8c5e", sha256="0a1b"),
        "engine": {"args": job.engine.args},
        "sampling": job.sampling,
        "versions": {"vllm": "0.32.0"},
    }
    return Basis(**{**fields, **changes})
