"""What order.json tells of a job's chosen order.

In: a trial and its verdict. Out: `Promotion`, a frozen value that goes to JSON and back without loss. Touches no file.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from orderproof.job.formatting import with_interval
from orderproof.job.hashing import canonical_json
from orderproof.measure.trial_store import Manifest, Trial
from orderproof.measure.verdict import Verdict
from orderproof.orders.order_record import OrderRecord

SCHEMA: Final = "orderproof/promotion/1"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class VerdictSummary(_Frozen):
    """What a reader of the order wants to know of the verdict; the whole of it is in the trial's verdict.json."""

    verdict: str
    reason: str
    blocks: int
    gain: float | None  # gains are fractions
    gain_low: float | None
    gain_high: float | None
    outputs: str | None  # as_reshuffling | more_than_reshuffling | undecided

    @classmethod
    def of(cls, verdict: Verdict) -> VerdictSummary:
        same = {name: getattr(verdict, name) for name in cls.model_fields if name != "outputs"}
        return cls(**same, outputs=verdict.outputs.answer if verdict.outputs else None)


class Demotion(_Frozen):
    """A promotion that was taken back."""

    order: OrderRecord
    verdict: VerdictSummary | None
    trial: str | None
    promoted_utc: str
    demoted_utc: str
    reason: str  # as the user gave it


class Promotion(_Frozen):
    """The record of a job's chosen order: a promoted one, or the file's own while none is promoted."""

    schema_version: Literal["orderproof/promotion/1"] = SCHEMA
    job: str
    promoted: bool
    order: OrderRecord
    order_md5: str  # of order.parquet: what makes the two files a pair
    prompts: int
    verdict: VerdictSummary | None = None  # that promoted this order, or was the last not to promote another
    trial: str | None = None  # of that verdict; None: refused before a trial began
    manifest_sha256: str | None = None
    model: str | None = None  # its fingerprint
    engine: str | None = None  # `engine_fingerprint`
    mode: str | None = None  # eager | compiled
    mlflow_run: str | None = None
    demoted: Demotion | None = None  # the last promotion for this dataset that was taken back
    created_utc: str

    def same_but_for_its_time(self, other: Promotion) -> bool:
        """Both tell the same."""
        return self == other.model_copy(update={"created_utc": self.created_utc})

    @property
    def headline(self) -> str:
        """One line for a log or a commit: job, order, verdict and gain."""
        line = f"{self.job}: {'promote' if self.promoted else 'keep'} the {self.order.method} order"
        v = self.verdict
        if v is None:
            return line
        line += f"; {v.verdict}"
        if v.gain is not None:
            line += f", gain {with_interval(v.gain, v.gain_low, v.gain_high)}"
        return line + (f" in {v.blocks} blocks" if v.blocks else "")


def provenance(trial: Trial | None, verdict: Verdict | None, mlflow_run: str | None) -> dict[str, Any]:
    """The fields of a `Promotion` that a trial and its verdict decide."""
    fields: dict[str, Any] = {"verdict": VerdictSummary.of(verdict) if verdict else None, "mlflow_run": mlflow_run}
    if trial is None:
        return fields
    manifest = trial.manifest
    return fields | {
        "trial": manifest.trial,
        "manifest_sha256": manifest.sha256,
        "model": manifest.model["fingerprint"],
        "engine": engine_fingerprint(manifest),
        "mode": manifest.engine["mode"],
    }


def engine_fingerprint(manifest: Manifest) -> str:
    """What of the engine a promotion is tied to: sha256 of the canonical JSON of its args and environment."""
    settings = {"args": manifest.engine["args"], "env": manifest.engine["env"]}
    if (replicas := manifest.engine.get("replicas", 1)) > 1:
        settings["replicas"] = replicas
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()
