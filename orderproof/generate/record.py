"""What is known of one run of a batch: reports/generate/<job>/<run>.json, and its picture beside it.

In: what a run did. Out: a frozen `BatchRun` on disk, from which any tracker can be told later. Knows nothing of
engines, MLflow, Prefect or DVC. These files lie apart from reports/<job>, which is evidence and an output of the
measuring stage.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orderproof.engines.protocol import EngineInfo
from orderproof.generate.delivery import Delivered
from orderproof.generate.generation import Batch, Generated
from orderproof.generate.generation_record import GenerationRecord, recorded
from orderproof.job.errors import OrderproofError
from orderproof.job.files import write_atomically
from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job

SCHEMA = "orderproof/batch/1"


class BatchRecordError(OrderproofError):
    """A record of a run that cannot be read or written."""


class BatchRun(GenerationRecord):
    """One run of a job that came to its end. Figures are of this run alone; a resumed batch had others before."""

    schema_version: str = SCHEMA
    outputs: str  # path from the project's folder
    outputs_md5: str
    key: dict[str, Any]  # what the outputs rest on
    prompts: int
    failed: int  # of them, without the output that was asked
    failures: tuple[tuple[str, str], ...] = ()  # (id, reason) of the first few
    prompt_tokens: int = 0
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

    def sentence(self) -> str:
        """The run on one line."""
        said = f"{self.lossy_first}{self.job}: {self.prompts} outputs in the file's order"
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


def record_of(
    batch: Batch,
    why: str,
    generated: Generated,
    engine: EngineInfo | None,
    delivered: Delivered,
    started: datetime.datetime,
    prefect_run: str | None = None,
) -> BatchRun:
    """All that is known when outputs.parquet is there. `engine`: None if nothing was left to generate."""
    job, figures, steps = batch.job, generated.figures, generated.steps
    timed: dict[str, Any] = {}
    if figures and generated.outputs:
        price = job.reporting.price_per_hour
        timed = {
            "throughput_req_s": generated.outputs / figures.wall_s,
            "throughput_tok_s": generated.output_tokens / figures.wall_s,
            "time_per_batch_ms": steps.percentile(50),
            "time_per_batch_p95_ms": steps.percentile(95),
            "running_mean": steps.running_mean,
            "waiting_mean": steps.waiting_mean,
            "preempted": figures.preempted,
            "replica_wall_s": figures.replica_s,
            "imbalance": figures.imbalance,
            "cost_per_1k_requests": 1000 * price * figures.wall_s / 3600 / generated.outputs if price else None,
        }
    return BatchRun(
        **recorded(batch, why, generated, engine, started),
        outputs=str(delivered.path.relative_to(job.root)),
        outputs_md5=md5_of(delivered.path),
        prompts=len(batch.source),
        failed=delivered.failed,
        failures=delivered.failures,
        prompt_tokens=generated.prompt_tokens,
        steps=steps.steps,
        replicas=job.engine.replicas,
        currency=job.reporting.currency,
        curve=tuple(
            (round(ms, 3), round(running, 2), round(waiting, 2)) for ms, running, waiting in steps.curve().tolist()
        ),
        key=dict(batch.key),
        prefect_run=prefect_run,
        **timed,
    )


def keep(job: Job, run: BatchRun) -> Path:
    """Write a run's record, or write it again with what became of it. Raises BatchRecordError."""
    path = reports_of(job) / f"{run.run}.json"
    try:
        write_atomically(path, run.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise BatchRecordError(
            f"{path} cannot be written: {error.strerror}. The outputs are whole in {run.outputs}; mend that "
            "before the next run"
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
            f"{path} is not readable as the record of a run: {' '.join(str(error).split())[:200]}. "
            "Put back what was there, or move it elsewhere"
        ) from None
