"""What every record of a generation holds, whether it is a run of the job or a reproduction of one.

In: what was generated, in which order, by which engine. Out: the fields that both records have. Knows nothing of files,
MLflow, Prefect or DVC.
"""

from __future__ import annotations

import datetime
import zlib
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from orderproof.engines.protocol import EngineInfo
from orderproof.generate.generation import Batch, Generated
from orderproof.lossy.routing import routing_named
from orderproof.orders.order_record import OrderRecord


class GenerationRecord(BaseModel):
    """One generation of a job's outputs that came to its end. Figures are of this run, not of those it goes on from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: str
    run: str  # sortable: 20261129T144640Z-3f9a
    job: str
    started_utc: str
    ended_utc: str
    dataset_md5: str
    order: OrderRecord
    order_why: str
    lossy_k0: int | None = None  # LOSSY: other experts than the model's own, accepted by a person; null: its own
    resumed: int  # outputs that earlier, unfinished runs had generated
    generated: int  # outputs of this run
    output_tokens: int = 0
    wall_s: float = 0.0  # of the engine at work; without load and compile
    load_s: float = 0.0
    versions: dict[str, str] = {}
    machine: dict[str, Any] = {}
    toy: bool = False
    prefect_run: str | None = None
    mlflow_run: str | None = None  # null: not sent yet
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The generation on one line."""
        raise NotImplementedError

    @property
    def lossy_first(self) -> str:
        """What a sentence about it begins with: nothing where the model's own routing was kept."""
        return "" if self.lossy_k0 is None else f"{routing_named(self.lossy_k0)}: "

    def noting(self, *notes: str) -> Self:
        return self.model_copy(update={"notes": (*self.notes, *notes)})


def recorded(
    batch: Batch, why: str, generated: Generated, engine: EngineInfo | None, started: datetime.datetime
) -> dict[str, Any]:
    """The fields of a `GenerationRecord` that ends now. `engine`: None if nothing was left to generate."""
    return {
        "run": run_name(started),
        "job": batch.job.name,
        "started_utc": started.isoformat(timespec="seconds"),
        "ended_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "dataset_md5": batch.file.md5,
        "order": batch.checkpoint.order.record(),
        "order_why": why,
        "lossy_k0": batch.job.lossy_k0,
        "resumed": batch.checkpoint.resumed,
        "generated": generated.outputs,
        "output_tokens": generated.output_tokens,
        "wall_s": generated.figures.wall_s if generated.figures else 0.0,
        "load_s": engine.load_s if engine else 0.0,
        "versions": dict(engine.versions) if engine else {},
        "machine": dict(engine.machine) if engine else {},
        "toy": batch.model.toy,
    }


def run_name(started: datetime.datetime) -> str:
    """The name of the run that began then, sortable: 20261129T144640Z-3f9a."""
    return f"{started:%Y%m%dT%H%M%SZ}-{zlib.crc32(started.isoformat().encode()) & 0xFFFF:04x}"
