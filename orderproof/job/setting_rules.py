"""Rules for a job's settings that no field states alone: required and refused keys, and settings that go together."""

from __future__ import annotations

from pathlib import Path

from orderproof.job.sampling import MAX_COUNT, REFUSED_SAMPLING, is_count
from orderproof.job.spec import EngineSpec, Job, JobError

ITEM_PROMPTS = "${item.prompts}"  # in dvc.yaml
NOT_WITH_A_SERVER = ("command", "env", "args", "batch_invariant", "lora_modules", "replicas", "devices")


def check_job(params: Path, job: Job) -> None:
    """Check what a job's settings require of each other.

    Raises:
        JobError: the first setting that is missing, refused or does not fit another.
    """
    where = f"{params}: jobs.{job.name}.engine.args"
    if job.engine.server:
        _check_server(f"{params}: jobs.{job.name}.engine", job.engine)
    else:
        _check_own_engine(f"{params}: jobs.{job.name}.engine", job.engine)
    for key, why in (
        ("model", f"it is jobs.{job.name}.model"),
        ("trust_remote_code", "code from a model is never run"),
    ):
        if key in job.engine.args:
            raise JobError(f"{where}.{key} cannot be set here: {why}")
    _check_prompts(params, job)
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
            f"{params}: jobs.{job.name}.engine.batch_invariant does not cover outputs that are drawn at random "
            "without a seed: set sampling.temperature to 0, or give sampling.seed"
        )


def _check_server(where: str, engine: EngineSpec) -> None:
    if engine.concurrency is None:
        raise JobError(
            f"{where}.concurrency must be given, a whole number of requests in flight: the server's max_num_seqs, "
            "since more wait in its queue and fewer leave it idle"
        )
    for key in NOT_WITH_A_SERVER:
        if getattr(engine, key) != EngineSpec.model_fields[key].get_default(call_default_factory=True):
            raise JobError(f"{where}.{key} has no effect on a server, which has its own settings: leave it out")


def _check_own_engine(where: str, engine: EngineSpec) -> None:
    size = engine.args.get("max_num_seqs")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise JobError(
            f"{where}.args.max_num_seqs must be given, a whole number of sequences that run at once: vLLM's default "
            "depends on the device, and it decides what an order can gain"
        )
    for key in ("model", "api_key_env", "concurrency"):
        if getattr(engine, key) is not None:
            raise JobError(f"{where}.{key} is for a server: give engine.server, or leave it out")


def _check_prompts(params: Path, job: Job) -> None:
    """One list in params.yaml and DVC parses dvc.yaml for no job any more."""
    stages = job.root / "dvc.yaml"
    has_dvc = any((folder / ".dvc").is_dir() for folder in (job.root, *job.root.absolute().parents))
    if isinstance(job.prompts, tuple) and has_dvc and stages.is_file() and ITEM_PROMPTS in stages.read_text("utf-8"):
        raise JobError(
            f"{params}: jobs.{job.name}.prompts is a list, and with it DVC can run no stage of {stages}, which has "
            f"{ITEM_PROMPTS}: name a folder, or replace {ITEM_PROMPTS} there by what DVC should watch"
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
        raise JobError(f"{where}.devices: {', '.join(twice)} is listed twice, and replicas share no device")
