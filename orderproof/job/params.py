"""params.yaml → Jobs, checked.

In: the path of a params.yaml. Out: `Job` values, or a `JobError` that names the file, the key, its place and the
nearest right one. Touches no file but params.yaml.

params.yaml has four parts. `defaults` is merged under every job and `jobs.<name>` decides what is measured: both are
DVC parameters of that job's stage. `reporting` (price, log_text, publish, …) decides only what is said about a
measurement, and `generate` how a batch behaves: changing them measures and generates nothing again.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from orderproof.job.sampling import MAX_COUNT, REFUSED_SAMPLING, is_count
from orderproof.job.spec import BESIDE_THE_JOBS, EngineSpec, Job, JobError

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
# data/models holds the models; `defaults` is a key beside the jobs' own in `reporting` and `generate`.
RESERVED_NAMES = frozenset({"models", "defaults"})
IN_THE_JOB_ITSELF = ("prompts", "model")  # dvc.yaml reads `${item.prompts}`, and DVC knows no defaults


def load_jobs(params: Path) -> dict[str, Job]:
    """Read every job of a params.yaml.

    Raises:
        JobError: the file is missing, is not YAML, or holds an unknown key, a wrong type or an unusable name.
    """
    document = _read_yaml(params)
    _refuse_unknown(params, document, ("defaults", "jobs", *BESIDE_THE_JOBS, "demo"), "")
    jobs = document.get("jobs")
    if not isinstance(jobs, Mapping) or not jobs:
        raise JobError(f"{params}: `jobs` must map at least one name to a job")
    if "defaults" not in document:
        raise JobError(f"{params}: `defaults` is missing, and DVC's stages name it: add a line `defaults: {{}}`")
    _mapping(params, "defaults", document["defaults"])
    for part in BESIDE_THE_JOBS:
        _refuse_unknown(params, _mapping(params, part, document.get(part)), ("defaults", *map(str, jobs)), f"{part}.")
    return {_job_name(params, name): _build(params, name, document, body) for name, body in jobs.items()}


def load_job(params: Path, name: str) -> Job:
    """Read one job. Raises JobError, also for a name that params.yaml does not have."""
    jobs = load_jobs(params)
    if name not in jobs:
        near = _nearest(name, jobs)
        raise JobError(f"{params} has no job {name!r}{near or '; it has ' + ', '.join(jobs)}")
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
    """What is wrong with a document, and on which line, where the parser knows; without its advice to programmers."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def _job_name(params: Path, name: Any) -> str:
    if not isinstance(name, str):
        raise JobError(
            f"{params}: {name!r} cannot name a job, because YAML reads it as {type(name).__name__} and DVC leaves such "
            "a job out without a word: begin the name with a letter"
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
    for key in IN_THE_JOB_ITSELF:
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
    for key in ("name", "root", *BESIDE_THE_JOBS):
        if key in merged:
            place = ".".join(_place(document, name, (key,), of_job=True))
            raise JobError(f"{params}: {place} is not a key of a job" + _hint_for(key, name))
    beside = {part: _part_beside(params, part, document.get(part) or {}, name) for part in BESIDE_THE_JOBS}
    try:
        job = Job.model_validate({**merged, **beside, "name": name, "root": params.resolve().parent})
    except ValidationError as error:
        raise JobError("\n".join(_explain(params, document, name, detail) for detail in error.errors())) from None
    _check_engine(params, job)
    return job


def _part_beside(params: Path, part: str, mapping: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What `reporting` or `generate` holds for one job."""
    shared, own = (_mapping(params, f"{part}.{key}", mapping.get(key)) for key in ("defaults", name))
    return _merge(shared, own)


def _hint_for(key: str, name: str) -> str:
    stands = {
        "reporting": "price, log_text and publish stand",
        "generate": "tolerated_failures and when_running stand",
    }
    return f": {stands[key]} under {key}.{name}" if key in stands else ""


def _check_engine(params: Path, job: Job) -> None:
    where = f"{params}: jobs.{job.name}.engine.args"
    size = job.engine.args.get("max_num_seqs")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise JobError(
            f"{where}.max_num_seqs must be given, a whole number of sequences that run at once: vLLM's default depends "
            "on the device, and it decides what an order can gain"
        )
    for key, why in (
        ("model", f"it is jobs.{job.name}.model"),
        ("trust_remote_code", "code from a model is never run"),
    ):
        if key in job.engine.args:
            raise JobError(f"{where}.{key} cannot be set here: {why}")
    _check_devices(f"{params}: jobs.{job.name}.engine", job.engine)
    if job.engine.lora_modules and not job.engine.args.get("enable_lora"):
        raise JobError(f"{where}.enable_lora must be true where engine.lora_modules names adapters")
    for key in job.sampling.keys() & REFUSED_SAMPLING.keys():
        raise JobError(f"{params}: jobs.{job.name}.sampling.{key} is not supported. {REFUSED_SAMPLING[key]}")
    samples = job.sampling.get("n", 1)
    if not is_count(samples):
        raise JobError(
            f"{params}: jobs.{job.name}.sampling.n must be a whole number from 1 to {MAX_COUNT}, not {samples!r}"
        )
    if job.engine.batch_invariant and job.sampling.get("temperature", 1) != 0 and "seed" not in job.sampling:
        raise JobError(
            f"{params}: jobs.{job.name}.engine.batch_invariant promises nothing of outputs that are drawn at random "
            "without a seed: set sampling.temperature to 0, or give sampling.seed"
        )


def _check_devices(where: str, engine: EngineSpec) -> None:
    parallel = [key for key in ("tensor_parallel_size", "pipeline_parallel_size") if key in engine.args]
    for key in parallel:
        size = engine.args[key]
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise JobError(f"{where}.args.{key} must be a whole number from 1, not {size!r}")
    launched = engine.args.get("distributed_executor_backend") == "external_launcher"
    if engine.args.get("data_parallel_size", 1) != 1 and not launched:  # as vLLM's own LLM class
        raise JobError(
            f"{where}.args.data_parallel_size: vLLM refuses data-parallel ranks offline in one process, where they may "
            "hang: set engine.replicas, which shares the order among independent engines"
        )
    if engine.devices is None:
        return
    if len(engine.devices) != engine.replicas or not all(engine.devices):
        raise JobError(f"{where}.devices must list the devices of each of the {engine.replicas} replicas, such as "
                       f"{[[k] for k in range(engine.replicas)]}")  # fmt: skip
    named = [device for devices in engine.devices for device in devices]
    if twice := [device for device in dict.fromkeys(named) if named.count(device) > 1]:
        raise JobError(f"{where}.devices: {', '.join(twice)} stands there twice, and replicas share no device")


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
    """One line for one of pydantic's complaints, with the nearest right key for a wrong one."""
    where = f"{params}: {'.'.join(map(str, _place(document, name, detail['loc'])))}"
    if detail["type"] == "extra_forbidden":
        known = _keys_beside(detail["loc"])
        near = _nearest(str(detail["loc"][-1]), known) or "; known here: " + ", ".join(known)
        return f"{where} is not a key{near}"
    if detail["type"] == "missing":
        return f"{where} is missing"
    return f"{where}: {detail['msg'].removeprefix('Value error, ')}, not {detail['input']!r}"


def _place(document: Mapping[str, Any], name: str, path: tuple[Any, ...], *, of_job: bool = False) -> tuple[Any, ...]:
    """Where in the file a value of a job stands: with the job, or among the defaults under it.

    `of_job`: also a part that belongs beside the jobs was written into one.
    """
    if path and path[0] in BESIDE_THE_JOBS and not of_job:
        part, *inner = path
        own, shared = (part, name, *inner), (part, "defaults", *inner)
    else:
        own, shared = ("jobs", name, *path), ("defaults", *path)
    return shared if _stands(document, shared) and not _stands(document, own) else own


def _stands(value: Any, path: tuple[Any, ...]) -> bool:
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _keys_beside(path: tuple[Any, ...]) -> list[str]:
    """The keys that the model has at the place of a wrong key."""
    model: type[BaseModel] = Job
    for part in path[:-1]:
        annotation = model.model_fields[str(part)].annotation
        for one in (annotation, *get_args(annotation)):  # `AcceptLossy | None` is one too
            if isinstance(one, type) and issubclass(one, BaseModel):
                model = one
    return [key for key in model.model_fields if key not in ("name", "root", *BESIDE_THE_JOBS)]


def _refuse_unknown(params: Path, mapping: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in mapping:
        if key not in known:
            near = _nearest(str(key), known) or "; known here: " + ", ".join(known)
            raise JobError(f"{params}: {where}{key} is not a key{near}")


def _nearest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, [str(k) for k in known], n=1)
    return f": did you mean {close[0]!r}?" if close else ""
