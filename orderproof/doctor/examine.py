"""Examine everything that a job needs: software, project, services and machine.

It repairs nothing, starts no engine and imports nothing heavy. Every missing or broken thing becomes a check, never an
error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from orderproof.doctor import machine, services, software
from orderproof.doctor.check import Check
from orderproof.job.lfs import POINTER_REMEDY
from orderproof.job.model import ModelError, find_pointers, read_model
from orderproof.job.output_key import differences
from orderproof.job.params import load_jobs
from orderproof.job.redaction import recorded_engine
from orderproof.job.spec import Job, JobError
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.prompt_files import find_files

__all__ = ["Check", "examine"]


def examine(params: Path) -> list[Check]:
    """Check everything that a measurement needs: software, project, services, machine, in this order.

    Args:
        params: the project's params.yaml; its folder is the project folder.
    """
    jobs, params_check = _read_jobs(params)
    root = params.absolute().parent
    examinations: list[tuple[str, Callable[[], Check | list[Check]]]] = [
        ("Python", software.python),
        ("packages", software.packages),
        ("vLLM", partial(software.engines, jobs)),
        ("params.yaml", lambda: params_check),
        *((f"job {job.name}", partial(_job, job)) for job in jobs),
        ("git", partial(services.git, root, jobs)),
        ("DVC", partial(services.dvc, root)),
        ("MLflow", partial(services.mlflow, root)),
        ("Prefect", services.prefect),
        ("CPU", machine.load),
        ("memory", partial(machine.memory, jobs)),
        ("disk", partial(machine.disk, root)),
        ("accelerator", lambda: machine.accelerators(software.installed(software.ENGINES))),
        ("threads", partial(machine.threads, jobs)),
        ("replicas", partial(machine.replicas, jobs)),
    ]
    return [check for name, run in examinations for check in _run(name, run)]


def _run(name: str, run: Callable[[], Check | list[Check]]) -> list[Check]:
    """Run one examination. An unexpected error in it must not hide the other checks."""
    try:
        checks = run()
    except Exception as error:
        finding = f"could not be examined: {type(error).__name__}: {error}"
        return [Check(name, "warn", finding, "fix this error; the other checks are valid")]
    return [checks] if isinstance(checks, Check) else checks


def _read_jobs(params: Path) -> tuple[list[Job], Check]:
    try:
        jobs = list(load_jobs(params).values())
    except JobError as error:
        return [], Check("params.yaml", "fail", str(error), "fix it: no job can run before")
    except OSError as error:
        return [], Check(
            "params.yaml", "fail", f"{params} cannot be read: {error.strerror}", "fix its path or permissions"
        )
    return jobs, Check("params.yaml", "ok", "jobs: " + ", ".join(job.name for job in jobs))


def _job(job: Job) -> list[Check]:
    """One check if prompts, tokenizer and model exist, otherwise one for each that is missing."""
    name = f"job {job.name}"
    problems = [check for check in (_prompts(job, name), _tokenizer(job, name)) if check]
    model, secrets = _model(job, name), _secrets(job, name)
    return [*(problems if problems and model.state == "ok" else [*problems, model]), *secrets]


def _model(job: Job, name: str) -> Check:
    if pointers := find_pointers(job.model_path):
        return _pointers(name, job.model, pointers)
    if not (job.model_path / "config.json").is_file():
        return Check(name, "fail", f"{job.model} does not exist or has no config.json", _get(f"jobs.{job.name}.model"))
    try:
        model = read_model(job.model_path, job.model, job.adapters)
    except ModelError as error:
        return Check(name, "fail", str(error), "download or create the model again")
    except OSError as error:
        return Check(name, "fail", f"{job.model} cannot be read: {error.strerror}", "fix its permissions")
    if model.moe is None:
        finding = f"{job.model} ({model.architecture}) is dense: every token reads all weights, in any order"
        return Check(name, "warn", finding, "expect `refused`: only a mixture of experts gains from an order")
    moe = model.moe
    finding = f"{job.model}: mixture of {moe.experts} experts, top {moe.top_k}, in {moe.moe_layers} layers"
    return Check(name, "ok", finding + (" (toy model)" if model.toy else ""))


def _prompts(job: Job, name: str) -> Check | None:
    if job.has_remote_prompts:  # a server may be slow, and what it has may be large
        return None
    try:
        files = find_files(job).files
    except PromptError as error:
        is_there = job.prompts_path.exists() or not job.has_one_file
        remedy = error.remedy if is_there else _get(f"jobs.{job.name}.prompts")
        return Check(name, "fail", f"{job.prompts_name} {error.problem}", remedy)
    if any(file.stat().st_size for file in files):
        return None
    return Check(name, "fail", f"{job.prompts_name} is empty", _get(f"jobs.{job.name}.prompts"))


def _tokenizer(job: Job, name: str) -> Check | None:
    if job.tokenizer and (pointers := find_pointers(job.tokenizer_path)):
        return _pointers(name, job.tokenizer, pointers)
    if job.tokenizer is None or job.tokenizer_path.is_dir():
        return None
    return Check(name, "fail", f"{job.tokenizer} does not exist", _get(f"jobs.{job.name}.tokenizer"))


def _pointers(name: str, folder: str, pointers: list[Path]) -> Check:
    files = ", ".join(path.name for path in pointers[:3]) + (" …" if pointers[3:] else "")
    return Check(name, "fail", f"{folder} has Git LFS pointers in the place of {files}", POINTER_REMEDY)


def _secrets(job: Job, name: str) -> list[Check]:
    """Secrets that params.yaml holds: the records hide them, but git and dvc.lock have the file's own parameters."""
    engine = job.engine
    recorded = recorded_engine(job)
    all_written = {**engine.model_dump(mode="json"), "env": engine.environment}
    written = {key: all_written[key] for key in recorded}
    found = [change.split(": ")[0] for change in differences(recorded, written)]
    if not found:
        return []
    keys = ", ".join(f"jobs.{job.name}.engine.{key}" for key in found)
    remedy = "set them in the environment that starts orderproof, which the engine inherits, and take them out there"
    return [Check(name, "warn", f"{keys} in params.yaml hold secrets, which DVC copies into dvc.lock", remedy)]


def _get(key: str) -> str:
    return f"create it (`make demo` for the samples), get it (`dvc pull`), or fix {key}"
