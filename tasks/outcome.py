"""What a measurement came to, in one value: for the terminal, for machines and for Prefect.

In: a job, its plan or trial, the verdict and what became of it. Out: an `Outcome`. Knows nothing of how any of it was
measured, tracked or recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orderproof.tasks.evidence import VERDICT_FILE, Trial, read_trials
from orderproof.tasks.files import write_atomically
from orderproof.tasks.jobs import Job
from orderproof.tasks.plan import Plan
from orderproof.tasks.promotion import Promotion, read_promotion
from orderproof.tasks.verdict import Verdict, refused

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
            said += f", gain {v.gain:+.1%}"
            if v.gain_low is not None and v.gain_high is not None:
                said += f" ({v.gain_low:+.1%} to {v.gain_high:+.1%})"
            said += f" in {v.blocks} blocks"
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


def refusal(plan: Plan) -> Outcome:
    """The outcome of a plan that refused, kept as the job's newest verdict."""
    assert plan.refusal is not None
    verdict = refused(plan.refusal, plan.rule)
    write_atomically(plan.job.reports_dir / VERDICT_FILE, verdict.model_dump_json(indent=1) + "\n")
    return Outcome(job=plan.job.name, verdict=verdict, toy=plan.model.toy)


def standing(job: Job, question: str) -> Outcome | None:
    """The outcome of the newest trial, if it asked just this question and had its verdict; otherwise None."""
    trials = read_trials(job.reports_dir)
    if not trials or trials[-1].manifest.question != question:
        return None
    newest = trials[-1]
    path = newest.folder / VERDICT_FILE
    if not path.exists():
        return None
    known = outcome_of(newest, Verdict.model_validate_json(path.read_bytes()))
    return replace(known, promotion=read_promotion(job)).noting(
        "nothing changed since this trial, so it stands unmeasured"
    )
