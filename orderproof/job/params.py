"""params.yaml → `Job` values, checked.

params.yaml has four parts. `defaults` is merged under every job and `jobs.<name>` decides what is measured: both are
DVC parameters of that job's stage. `reporting` (price, log_text, publish, …) decides only how a measurement is reported
and `generate` how a batch behaves: after a change of these nothing is measured or generated again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from orderproof.job.setting_rules import check_job
from orderproof.job.spec import SECTIONS_BESIDE_JOBS, Job, JobError
from orderproof.job.spelling import did_you_mean

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
# data/models holds the models; `defaults` is a key beside the jobs' own in `reporting` and `generate`.
RESERVED_NAMES = frozenset({"models", "defaults"})
KEYS_OF_EACH_JOB = ("prompts", "model")  # dvc.yaml reads `${item.prompts}`, and DVC knows no defaults


def load_jobs(params: Path) -> dict[str, Job]:
    """Read every job of a params.yaml.

    Raises:
        JobError: the file is missing, is not YAML, or holds an unknown key, a wrong type or an unusable name.
    """
    document = _read_yaml(params)
    _check_keys(params, document, ("defaults", "jobs", *SECTIONS_BESIDE_JOBS, "demo"), "")
    jobs = document.get("jobs")
    if not isinstance(jobs, Mapping) or not jobs:
        raise JobError(f"{params}: `jobs` must map at least one name to a job")
    if "defaults" not in document:
        raise JobError(f"{params}: `defaults` is missing, and dvc.yaml names it: add a line `defaults: {{}}`")
    _mapping(params, "defaults", document["defaults"])
    for section in SECTIONS_BESIDE_JOBS:
        mapping = _mapping(params, section, document.get(section))
        _check_keys(params, mapping, ("defaults", *map(str, jobs)), f"{section}.")
    return {_job_name(params, name): _build(params, name, document, body) for name, body in jobs.items()}


def load_job(params: Path, name: str) -> Job:
    """Read one job. Raises JobError, also for a name that params.yaml does not have."""
    jobs = load_jobs(params)
    if name not in jobs:
        raise JobError(f"{params} has no job {name!r}: {did_you_mean(name, jobs)}")
    return jobs[name]


def _read_yaml(params: Path) -> Mapping[str, Any]:
    try:
        document = YAML(typ="safe", pure=True).load(params.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise JobError(f"{params} does not exist: run from the project's folder, or name one with --params") from None
    except OSError as error:
        raise JobError(f"{params} cannot be read: {error.strerror}") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise JobError(f"{params} is not readable as YAML: {_problem(error)}") from None
    except RecursionError:
        raise JobError(f"{params} is not readable as YAML: it is nested too deeply. Write it flatter") from None
    if not isinstance(document, Mapping):
        raise JobError(f"{params}: expected the keys `defaults`, `jobs` and `reporting`")
    return document


def _problem(error: Exception) -> str:
    """What is wrong with a document, and on which line if the parser knows it."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def _job_name(params: Path, name: Any) -> str:
    if not isinstance(name, str):
        raise JobError(
            f"{params}: {name!r} cannot name a job, because YAML reads it as {type(name).__name__} and DVC leaves such "
            "a job out silently: begin the name with a letter"
        )
    if not NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise JobError(
            f"{params}: {name!r} cannot name a job, because names become folders: use up to 64 of a-z, 0-9, '-' and "
            f"'_' (not {', '.join(sorted(RESERVED_NAMES))})"
        )
    return name


def _build(params: Path, name: str, document: Mapping[str, Any], body: Any) -> Job:
    if not isinstance(body, Mapping):
        raise JobError(f"{params}: jobs.{name} must be a mapping, not {body!r}")
    for key in KEYS_OF_EACH_JOB:
        if key not in body and key in (document["defaults"] or {}):
            raise JobError(
                f"{params}: jobs.{name}.{key} is missing: DVC reads it there and not in `defaults`, so move it into "
                "every job"
            )
    if "accept_lossy" in (document["defaults"] or {}):
        raise JobError(
            f"{params}: defaults.accept_lossy is refused: a lossy routing is accepted job by job, by its own evidence"
        )
    merged = _merge(document.get("defaults") or {}, body)
    for key in ("name", "root", *SECTIONS_BESIDE_JOBS):
        if key in merged:
            place = ".".join(_place(document, name, (key,), of_job=True))
            raise JobError(f"{params}: {place} is not a key of a job" + _hint_for(key, name))
    sections = {key: _section(params, key, document.get(key) or {}, name) for key in SECTIONS_BESIDE_JOBS}
    try:
        job = Job.model_validate({**merged, **sections, "name": name, "root": params.resolve().parent})
    except ValidationError as error:
        raise JobError("\n".join(_explain(params, document, name, detail) for detail in error.errors())) from None
    check_job(params, job)
    return job


def _section(params: Path, section: str, mapping: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The part of `reporting` or `generate` that holds for one job."""
    shared, own = (_mapping(params, f"{section}.{key}", mapping.get(key)) for key in ("defaults", name))
    return _merge(shared, own)


def _hint_for(key: str, name: str) -> str:
    members = {"reporting": "price, log_text and publish", "generate": "tolerated_failures and when_running"}
    return f": write {members[key]} under {key}.{name}" if key in members else ""


def _mapping(params: Path, where: str, value: Any) -> Mapping[str, Any]:
    """A part of the file that may be left out or left empty."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise JobError(f"{params}: {where} must be a mapping, not {value!r}")
    return value


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` wins; mappings are merged key by key."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _explain(params: Path, document: Mapping[str, Any], name: str, detail: Any) -> str:
    """One of pydantic's errors in one line, with a suggestion for a wrong key."""
    where = f"{params}: {'.'.join(map(str, _place(document, name, detail['loc'])))}"
    if detail["type"] == "extra_forbidden":
        return f"{where} is not a key: {did_you_mean(str(detail['loc'][-1]), _known_keys(detail['loc']))}"
    if detail["type"] == "missing":
        return f"{where} is missing"
    return f"{where}: {detail['msg'].removeprefix('Value error, ')}, not {detail['input']!r}"


def _place(document: Mapping[str, Any], name: str, path: tuple[Any, ...], *, of_job: bool = False) -> tuple[Any, ...]:
    """Where in the file a value of a job is: with the job, or among the defaults.

    Args:
        of_job: a section that belongs beside the jobs was written into one.
    """
    if path and path[0] in SECTIONS_BESIDE_JOBS and not of_job:
        section, *inner = path
        own, shared = (section, name, *inner), (section, "defaults", *inner)
    else:
        own, shared = ("jobs", name, *path), ("defaults", *path)
    return shared if _exists(document, shared) and not _exists(document, own) else own


def _exists(value: Any, path: tuple[Any, ...]) -> bool:
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _known_keys(path: tuple[Any, ...]) -> list[str]:
    """The keys that exist at the place of a wrong key."""
    model: type[BaseModel] = Job
    for key in path[:-1]:
        annotation = model.model_fields[str(key)].annotation
        for candidate in (annotation, *get_args(annotation)):  # also `AcceptLossy | None`
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    return [key for key in model.model_fields if key not in ("name", "root", *SECTIONS_BESIDE_JOBS)]


def _check_keys(params: Path, mapping: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in mapping:
        if key not in known:
            raise JobError(f"{params}: {where}{key} is not a key: {did_you_mean(str(key), known)}")
