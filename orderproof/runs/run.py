"""The record of one run of any verb: what was run, what it rests on, what came out, and where its files are."""

from __future__ import annotations

from typing import Any, Literal, Self, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, JsonValue

from orderproof.job.model import ModelFacts
from orderproof.job.paths import Verb
from orderproof.job.redaction import recorded_args, recorded_engine
from orderproof.job.spec import Job
from orderproof.orders.order_record import OrderRecord

TOY = "toy model on CPUs: do not expect this gain on your hardware"


class Frozen(BaseModel):
    """A value that cannot be changed and that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Figure(Frozen):
    """One number of a run. Shares and gains are fractions; the name ends in its unit where it has one."""

    name: str  # throughput_req_s, gain, wall_s: the key in --json and the metric in MLflow
    value: float | None  # None: unknown
    low: float | None = None  # of its 95 % interval
    high: float | None = None

    def flat(self) -> dict[str, float | None]:
        """Itself and its interval as separate numbers: gain, gain_low, gain_high."""
        interval = {f"{self.name}_low": self.low, f"{self.name}_high": self.high}
        return {self.name: self.value, **(interval if (self.low, self.high) != (None, None) else {})}


class OtherBasis(TypedDict, total=False):
    """The fields of a basis that only some verbs know."""

    order: OrderRecord | None
    order_reason: str
    lossy_k0: int | None
    versions: dict[str, str]
    machine: dict[str, JsonValue]


class Basis(Frozen):
    """What a run rests on. Two runs with equal bases are comparable."""

    prompts: str  # path from the project's folder
    dataset_md5: str | None
    prompts_total: int | None
    model: str
    model_fingerprint: str | None
    toy: bool = False
    order: OrderRecord | None = None
    order_reason: str = ""  # why this order
    lossy_k0: int | None = None  # LOSSY: experts of its own that a token keeps; None: the model's own routing
    engine: dict[str, JsonValue] = {}  # vLLM's settings as the job gives them
    sampling: dict[str, JsonValue] = {}
    versions: dict[str, str] = {}
    machine: dict[str, JsonValue] = {}

    @classmethod
    def of(
        cls,
        job: Job,
        model: ModelFacts,
        dataset_md5: str | None,
        prompts_total: int | None,
        **more: Unpack[OtherBasis],
    ) -> Self:
        """Of a run of this job and its model; `more` is what only some verbs know."""
        return cls(
            prompts=job.prompts_name,
            dataset_md5=dataset_md5,
            prompts_total=prompts_total,
            model=job.model,
            model_fingerprint=model.fingerprint,
            toy=model.toy,
            engine=_engine_of(job),
            sampling=job.sampling,
            **more,
        )


def _engine_of(job: Job) -> dict[str, JsonValue]:
    if job.engine.server:
        return recorded_engine(job)
    return {"args": recorded_args(job), "replicas": job.engine.replicas}


class RunIdentity(TypedDict):
    """Which run a record is of, and when it ran."""

    job: str
    verb: Verb
    id: str
    started_utc: str
    ended_utc: str


class Run(Frozen):
    """One run that came to its end, whatever the verb."""

    schema_version: Literal["orderproof/run/1"] = "orderproof/run/1"
    job: str
    verb: Verb
    id: str  # sortable: 20261129T144640Z-3f9a
    started_utc: str
    ended_utc: str
    answer: str  # in a word or two: promote, complete, reproduced, measure
    exit_code: int = 0  # for --exit-code
    sentence: str
    reason: str = ""
    lines: tuple[str, ...] = ()  # what a person reads below the sentence
    next_command: str = ""
    basis: Basis
    figures: tuple[Figure, ...] = ()
    details: dict[str, JsonValue] = {}  # what only this verb has
    files: dict[str, str] = {}  # page, picture, outputs, … → path from the project's folder
    prefect_run: str | None = None
    dvc_revision: str | None = None
    notes: tuple[str, ...] = ()  # what did not work, and what to do
    mlflow_run: str | None = None  # known after the record was written, so never in its file

    def figure(self, name: str) -> float | None:
        """The value of a figure; None where it is unknown or not there."""
        return next((figure.value for figure in self.figures if figure.name == name), None)

    def with_notes(self, *notes: str) -> Self:
        """The same run with more notes."""
        return self.model_copy(update={"notes": (*self.notes, *notes)})

    def with_files(self, **files: str) -> Self:
        """The same run with more files."""
        return self.model_copy(update={"files": {**self.files, **files}})

    def as_json(self) -> dict[str, Any]:
        """The stable shape of `--json`: figures by name, absent things null."""
        written = self.model_dump(mode="json", exclude={"figures", "lines", "schema_version"})
        figures = {name: value for figure in self.figures for name, value in figure.flat().items()}
        return {"schema": self.schema_version, **written, "figures": figures}
