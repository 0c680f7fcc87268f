"""A params.yaml with some keys replaced, and the errors of reading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from orderproof.job.params import load_job, load_jobs
from orderproof.job.spec import Job, JobError

JOB = {"prompts": "p.jsonl", "model": "m", "engine": {"args": {"max_num_seqs": 16}}}


def write_params(folder: Path, document: Any) -> Path:
    """A params.yaml; with empty defaults where a document of jobs does not say any, because DVC wants the key."""
    path = folder / "params.yaml"
    if isinstance(document, dict) and "jobs" in document:
        document = {"defaults": {}, **document}
    if isinstance(document, str):
        path.write_text(document, "utf-8")
    else:
        YAML(typ="safe", pure=True).dump(document, path)
    return path


def job_with(folder: Path, name: str = "it", **changes: Any) -> Job:
    """A job with some of its keys replaced."""
    return load_job(write_params(folder, {"jobs": {name: {**JOB, **changes}}}), name)


def refusal(folder: Path, document: Any) -> str:
    """The error of reading a document."""
    with pytest.raises(JobError) as refused:
        load_jobs(write_params(folder, document))
    return str(refused.value)


def refusal_of_job(folder: Path, **changes: Any) -> str:
    """The error of reading a job with some of its keys replaced."""
    return refusal(folder, {"jobs": {"it": {**JOB, **changes}}})


def engine_with(**changes: Any) -> dict[str, Any]:
    """The `engine` of a job with further keys."""
    return {"engine": {"args": {"max_num_seqs": 16}, **changes}}
