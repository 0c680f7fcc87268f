"""The content of order.json: the record of a job's current order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from orderproof.job.formatting import with_interval
from orderproof.job.hashing import canonical_json
from orderproof.orders.order_record import OrderRecord

SCHEMA: Final = "orderproof/promotion/1"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class VerdictSummary(_Frozen):
    """The main facts of a verdict; the trial's verdict.json has all of it."""

    verdict: str
    reason: str
    blocks: int
    gain: float | None  # gains are fractions
    gain_low: float | None
    gain_high: float | None
    outputs: str | None  # as_reshuffling | more_than_reshuffling | undecided


class Evidence(_Frozen):
    """Why a job has its current order: a verdict and its basis."""

    verdict: VerdictSummary | None = None
    trial: str | None = None  # None: refused before a trial began
    manifest_sha256: str | None = None
    model: str | None = None  # fingerprint
    engine: str | None = None  # `engine_fingerprint`
    mode: str | None = None  # eager | compiled
    mlflow_run: str | None = None

    def fields(self) -> dict[str, Any]:
        """These fields of a `Promotion`."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class Demotion(_Frozen):
    """A promotion that was undone."""

    order: OrderRecord
    verdict: VerdictSummary | None
    trial: str | None
    promoted_utc: str
    demoted_utc: str
    reason: str  # as the user gave it


class Promotion(_Frozen):
    """The record of a job's current order: the promoted order, or that of the file while none is promoted."""

    schema_version: Literal["orderproof/promotion/1"] = SCHEMA
    job: str
    promoted: bool
    order: OrderRecord
    order_md5: str  # of order.parquet: shows that the two files belong together
    prompts: int
    verdict: VerdictSummary | None = None  # promoted this order, or is the last one that promoted none
    trial: str | None = None  # of that verdict; None: refused before a trial began
    manifest_sha256: str | None = None
    model: str | None = None  # fingerprint
    engine: str | None = None  # `engine_fingerprint`
    mode: str | None = None  # eager | compiled
    mlflow_run: str | None = None
    demoted: Demotion | None = None  # the last promotion for this dataset that was undone
    created_utc: str

    def equals_except_time(self, other: Promotion) -> bool:
        """Whether both are equal, apart from `created_utc`."""
        return self == other.model_copy(update={"created_utc": self.created_utc})

    @property
    def headline(self) -> str:
        """One line for a log or a commit: job, order, verdict and gain."""
        line = f"{self.job}: {'promote' if self.promoted else 'keep'} the {self.order.method} order"
        verdict = self.verdict
        if verdict is None:
            return line
        line += f"; {verdict.verdict}"
        if verdict.gain is not None:
            line += f", gain {with_interval(verdict.gain, verdict.gain_low, verdict.gain_high)}"
        return line + (f" in {verdict.blocks} blocks" if verdict.blocks else "")


def engine_fingerprint(args: Mapping[str, Any], env: Mapping[str, str], replicas: int) -> str:
    """sha256 of the canonical JSON of the engine settings: a promotion is valid only for these."""
    settings: dict[str, Any] = {
        "args": dict(args),
        "env": dict(env),
        **({"replicas": replicas} if replicas > 1 else {}),
    }
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()
