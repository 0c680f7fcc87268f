"""What is installed, which engine each job would start, and which traps are set.

In: the path of a params.yaml. Out: `Check`s, each of which says what to do where something is amiss. Repairs nothing,
starts no engine, imports nothing heavy; whatever is missing or broken becomes a check and never an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from orderproof.doctor import machine, services, software
from orderproof.doctor.check import Check
from orderproof.job.model import ModelError, read_model
from orderproof.job.params import load_jobs
from orderproof.job.spec import Job, JobError

__all__ = ["Check", "examine"]


def examine(params: Path) -> list[Check]:
    """Look at everything that a measurement rests on: software, project, services, machine, in this order.

    Args:
        params: the project's params.yaml; its folder is the project's.
    """
    jobs, told = _jobs(params)
    root = params.absolute().parent
    looks: list[tuple[str, Callable[[], Check | list[Check]]]] = [
        ("Python", software.python),
        ("packages", software.packages),
        ("vLLM", partial(software.engines, jobs)),
        ("params.yaml", lambda: told),
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
    return [check for name, look in looks for check in _examined(name, look)]


def _examined(name: str, look: Callable[[], Check | list[Check]]) -> list[Check]:
    """A doctor is called where things are broken as nobody foresaw: one broken thing must not hide the rest."""
    try:
        seen = look()
    except Exception as error:
        says = f"could not be examined: {type(error).__name__}: {error}"
        return [Check(name, "warn", says, "the other checks stand; mend what this one names")]
    return [seen] if isinstance(seen, Check) else seen


def _jobs(params: Path) -> tuple[list[Job], Check]:
    try:
        jobs = list(load_jobs(params).values())
    except JobError as error:
        return [], Check("params.yaml", "fail", str(error), "correct it: nothing runs before")
    except OSError as error:
        return [], Check(
            "params.yaml", "fail", f"{params} cannot be read: {error.strerror}", "correct its path or owner"
        )
    return jobs, Check("params.yaml", "ok", "jobs: " + ", ".join(job.name for job in jobs))


def _job(job: Job) -> list[Check]:
    """One check if prompts and model are there, otherwise one for each that is not."""
    name = f"job {job.name}"
    faults = [check for check in (_prompts(job, name), _tokenizer(job, name)) if check]
    model = _model(job, name)
    return faults if faults and model.state == "ok" else [*faults, model]


def _model(job: Job, name: str) -> Check:
    if not (job.model_path / "config.json").is_file():
        return Check(name, "fail", f"{job.model} is not there (no config.json)", _get(f"jobs.{job.name}.model"))
    try:
        model = read_model(job.model_path, job.model, job.adapters)
    except ModelError as error:
        return Check(name, "fail", str(error), "make or download the model again")
    except OSError as error:
        return Check(name, "fail", f"{job.model} cannot be read: {error.strerror}", "correct its owner")
    if model.moe is None:
        says = f"{job.model} ({model.architecture}) is dense: every token reads all weights in any order"
        return Check(name, "warn", says, "expect `refused`; only a mixture of experts gains from an order")
    moe = model.moe
    says = f"{job.model}: mixture of {moe.experts} experts, top {moe.top_k}, in {moe.moe_layers} layers"
    return Check(name, "ok", says + (" (a toy)" if model.toy else ""))


def _prompts(job: Job, name: str) -> Check | None:
    path = job.prompts_path
    if path.is_file() and path.stat().st_size:
        return None
    says = f"{job.prompts} is {'empty' if path.is_file() else 'a folder' if path.is_dir() else 'not there'}"
    return Check(name, "fail", says, _get(f"jobs.{job.name}.prompts"))


def _tokenizer(job: Job, name: str) -> Check | None:
    if job.tokenizer is None or job.tokenizer_path.is_dir():
        return None
    return Check(name, "fail", f"{job.tokenizer} is not there", _get(f"jobs.{job.name}.tokenizer"))


def _get(key: str) -> str:
    return f"make it (`make demo` for the samples), get it (`dvc pull`), or correct {key}"
