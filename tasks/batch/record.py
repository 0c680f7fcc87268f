"""What is known of one run of a batch: reports/generate/<job>/<run>.json, and its picture beside it.

In: what a run did. Out: a frozen `BatchRun` on disk, from which any tracker can be told later. Knows nothing of
engines, MLflow, Prefect or DVC. These files lie apart from reports/<job>, which is evidence and an output of the
measuring stage.
"""

from __future__ import annotations

import datetime
import zlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from orderproof.tasks.batch.delivery import Delivered
from orderproof.tasks.batch.generation import Batch, Generated
from orderproof.tasks.engines import EngineInfo
from orderproof.tasks.errors import OrderproofError
from orderproof.tasks.evidence import OrderRecord
from orderproof.tasks.files import md5_of, write_atomically
from orderproof.tasks.jobs import Job
from orderproof.tasks.lossy import routing_named

SCHEMA = "orderproof/batch/1"


class BatchRecordError(OrderproofError):
    """A record of a run that cannot be read or written."""


class BatchRun(BaseModel):
    """One run of a job that came to its end. Figures are of this run alone; a resumed batch had others before."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: str = SCHEMA
    run: str  # sortable: 20261129T144640Z-3f9a
    job: str
    started_utc: str
    ended_utc: str
    outputs: str  # path from the project's folder
    outputs_md5: str
    dataset_md5: str
    order: OrderRecord
    order_why: str
    lossy_k0: int | None = None  # LOSSY: other experts than the model's own, accepted by a person; null: its own
    prompts: int
    resumed: int  # of them, finished by earlier runs
    generated: int  # of them, answered in this run
    failed: int  # of them, without the output that was asked
    failures: tuple[tuple[str, str], ...] = ()  # (id, reason) of the first few
    prompt_tokens: int = 0
    output_tokens: int = 0
    wall_s: float = 0.0  # of the engine at work; without load and compile
    load_s: float = 0.0
    throughput_req_s: float | None = None  # null: nothing was left to generate
    throughput_tok_s: float | None = None
    time_per_batch_ms: float | None = None  # median of a scheduler step
    time_per_batch_p95_ms: float | None = None
    steps: int = 0
    running_mean: float | None = None
    waiting_mean: float | None = None
    preempted: int = 0
    replicas: int = 1  # engines that shared the order
    replica_wall_s: tuple[float, ...] = ()  # when each was done; empty: there was one
    imbalance: float | None = None  # the slowest replica's time over their mean: above 1, others were idle
    cost_per_1k_requests: float | None = None  # null: no price is given
    currency: str = ""
    curve: tuple[tuple[float, float, float], ...] = ()  # ms, running, waiting; means over equal runs of steps
    key: dict[str, Any] = {}  # what the outputs rest on
    versions: dict[str, str] = {}
    machine: dict[str, Any] = {}
    toy: bool = False
    prefect_run: str | None = None
    mlflow_run: str | None = None  # null: not sent yet
    notes: tuple[str, ...] = ()

    def noting(self, *notes: str) -> BatchRun:
        return self.model_copy(update={"notes": (*self.notes, *notes)})

    def sentence(self) -> str:
        """The run on one line."""
        lossy = "" if self.lossy_k0 is None else f"{routing_named(self.lossy_k0)}: "
        said = f"{lossy}{self.job}: {self.prompts} outputs in the file's order"
        if self.resumed:
            said += f", {self.resumed} of them kept from before"
        if self.failed:
            said += f", {self.failed} failed"
        if self.throughput_tok_s is not None:
            said += (
                f"; {self.throughput_req_s:.2f} req/s, {self.throughput_tok_s:.0f} tok/s in {self.order.method} order"
            )
        if self.imbalance is not None:
            said += f" on {self.replicas} replicas, the slowest of which took {self.imbalance:.2f} times their mean"
        return said

    def as_json(self) -> dict[str, Any]:
        """The stable shape of `--json`: all but the curve and the key."""
        return self.model_dump(mode="json", exclude={"curve", "key"})


def reports_of(job: Job) -> Path:
    """Where a job's runs are recorded."""
    return job.root / "reports" / "generate" / job.name


def run_name(started: datetime.datetime) -> str:
    """The name of the run that began then, sortable: 20261129T144640Z-3f9a."""
    return f"{started:%Y%m%dT%H%M%SZ}-{zlib.crc32(started.isoformat().encode()) & 0xFFFF:04x}"


def record_of(
    batch: Batch,
    why: str,
    generated: Generated,
    engine: EngineInfo | None,
    delivered: Delivered,
    started: datetime.datetime,
) -> BatchRun:
    """All that is known when outputs.parquet is there. `engine`: None if nothing was left to generate."""
    job, figures, steps = batch.job, generated.figures, generated.steps
    ended = datetime.datetime.now(datetime.UTC)
    timed: dict[str, Any] = {}
    if figures and generated.results:
        price = job.reporting.price_per_hour
        timed = {
            "wall_s": figures.wall_s,
            "throughput_req_s": generated.results / figures.wall_s,
            "throughput_tok_s": generated.output_tokens / figures.wall_s,
            "time_per_batch_ms": steps.percentile(50),
            "time_per_batch_p95_ms": steps.percentile(95),
            "running_mean": steps.running_mean,
            "waiting_mean": steps.waiting_mean,
            "preempted": figures.preempted,
            "replica_wall_s": figures.replica_s,
            "imbalance": figures.imbalance,
            "cost_per_1k_requests": 1000 * price * figures.wall_s / 3600 / generated.results if price else None,
        }
    return BatchRun(
        run=run_name(started),
        job=job.name,
        started_utc=started.isoformat(timespec="seconds"),
        ended_utc=ended.isoformat(timespec="seconds"),
        outputs=str(delivered.path.relative_to(job.root)),
        outputs_md5=md5_of(delivered.path),
        dataset_md5=batch.file.md5,
        order=batch.checkpoint.order.record(),
        order_why=why,
        lossy_k0=job.lossy_k0,
        prompts=len(batch.source),
        resumed=batch.checkpoint.resumed,
        generated=generated.results,
        failed=delivered.failed,
        failures=delivered.failures,
        prompt_tokens=generated.prompt_tokens,
        output_tokens=generated.output_tokens,
        load_s=engine.load_s if engine else 0.0,
        steps=steps.steps,
        replicas=job.engine.replicas,
        currency=job.reporting.currency,
        curve=tuple(
            (round(ms, 3), round(running, 2), round(waiting, 2)) for ms, running, waiting in steps.curve().tolist()
        ),
        key=dict(batch.key),
        versions=dict(engine.versions) if engine else {},
        machine=dict(engine.machine) if engine else {},
        toy=batch.model.toy,
        **timed,
    )


def keep(job: Job, run: BatchRun) -> Path:
    """Write a run's record, or write it again with what became of it. Raises BatchRecordError."""
    path = reports_of(job) / f"{run.run}.json"
    try:
        write_atomically(path, run.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise BatchRecordError(
            f"{path} cannot be written: {error.strerror}. The outputs are whole in {run.outputs}: mend that and run "
            "the job again"
        ) from None
    return path


def read_runs(job: Job) -> list[BatchRun]:
    """Every run of a job that came to its end, oldest first.

    Raises:
        BatchRecordError: a file is no such record.
    """
    return [_read(path) for path in sorted(reports_of(job).glob("*.json"))]


def _read(path: Path) -> BatchRun:
    try:
        return BatchRun.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise BatchRecordError(
            f"{path} is not readable as the record of a run: {' '.join(str(error).split())[:200]}"
        ) from None
