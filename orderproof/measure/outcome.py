"""What a measurement came to, in one value: for the terminal, for machines and for Prefect.

In: a trial, its verdict and what became of it. Out: an `Outcome`. Knows nothing of how any of it was measured, tracked
or recorded, and touches no file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orderproof.job.formatting import with_interval
from orderproof.measure.trial_store import Trial
from orderproof.measure.verdict import Verdict
from orderproof.runs.promotion_record import Promotion

TOY = "toy model on CPUs: not your gain"


@dataclass(frozen=True)
class Outcome:
    """A verdict and where everything about it lies."""

    job: str
    verdict: Verdict
    trial: str | None = None  # None: refused before a trial began
    folder: Path | None = None
    placebo: bool = False
    toy: bool = False
    page: Path | None = None
    mlflow_run: str | None = None
    promotion: Promotion | None = None
    notes: tuple[str, ...] = ()  # what did not work after the verdict, and what to do

    def noting(self, note: str) -> Outcome:
        return replace(self, notes=(*self.notes, note))

    def as_json(self) -> dict[str, Any]:
        """The stable shape of `--json`. Gains are fractions; paths are absolute; absent things are null."""
        v = self.verdict
        return {
            "schema": "orderproof/outcome/1",
            "job": self.job,
            "trial": self.trial,
            "placebo": self.placebo,
            "verdict": v.verdict,
            "exit_code": v.exit_code,
            "reason": v.reason,
            "blocks": v.blocks,
            "gain": v.gain,
            "gain_low": v.gain_low,
            "gain_high": v.gain_high,
            "detectable_gain": v.detectable_gain,
            "outputs": v.outputs.answer if v.outputs else None,
            "output_diff_rate": v.outputs.d_ab if v.outputs else None,
            "output_diff_floor": v.outputs.d_aa if v.outputs else None,
            "toy": self.toy,
            "order": self.promotion.order.method if self.promotion else None,
            "promoted": self.promotion.promoted if self.promotion else None,
            "folder": str(self.folder) if self.folder else None,
            "page": str(self.page) if self.page else None,
            "mlflow_run": self.mlflow_run,
            "notes": list(self.notes),
        }

    def sentence(self) -> str:
        """The verdict and its figures on one line."""
        v = self.verdict
        said = f"{'placebo ' if self.placebo else ''}{self.job}: {v.verdict}"
        if v.gain is not None:
            said += f", gain {with_interval(v.gain, v.gain_low, v.gain_high)} in {v.blocks} blocks"
        return said + (f" [{TOY}]" if self.toy and v.gain is not None else "")


def outcome_of(trial: Trial, verdict: Verdict) -> Outcome:
    """What is known once the verdict is reached."""
    manifest = trial.manifest
    return Outcome(
        job=manifest.job,
        verdict=verdict,
        trial=manifest.trial,
        folder=trial.folder,
        placebo=manifest.placebo,
        toy=bool(manifest.model.get("toy")),
    )
