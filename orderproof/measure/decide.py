"""A verdict recomputed from its trial's folder alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orderproof.job.errors import OrderproofError
from orderproof.job.spec import Job
from orderproof.measure.evaluate import judge
from orderproof.measure.parts import arm_differences
from orderproof.measure.record import verdict_sentence
from orderproof.measure.trial_store import VERDICT_FILE, find_trial
from orderproof.measure.verdict import Verdict
from orderproof.runs.run_store import verb_folder


@dataclass(frozen=True)
class Decision:
    """A recomputed verdict, beside the one on record."""

    job: str
    trial: str
    folder: Path
    verdict: Verdict
    sentence: str
    differences: tuple[str, ...]  # what else happened to the arms' requests
    same_as_recorded: bool  # bit for bit

    def as_json(self) -> dict[str, Any]:
        """The stable shape of `decide --json`."""
        return {
            "schema": "orderproof/decision/1",
            "job": self.job,
            "trial": self.trial,
            "folder": str(self.folder),
            "answer": self.verdict.verdict,
            "exit_code": self.verdict.exit_code,
            "sentence": self.sentence,
            "reason": self.verdict.reason,
            "differences": list(self.differences),
            "same_as_recorded": self.same_as_recorded,
            "verdict": self.verdict.model_dump(mode="json"),
        }


def decide(job: Job, trial: str | None = None, *, aa: bool = False) -> Decision:
    """Recompute a verdict, offline.

    Args:
        trial: the id of its run; None: the newest.
        aa: look among the A/A tests.

    Raises:
        EvidenceError: there is no such trial, or its files cannot be used.
        OrderproofError: the trial was stopped before a verdict was due.
    """
    found = find_trial(verb_folder(job, "aa" if aa else "measure"), trial)
    verdict = judge(found)
    if verdict is None:
        looks = ", ".join(map(str, found.manifest.rule.looks))
        raise OrderproofError(
            f"{found.folder}: {len(found.blocks())} blocks count and a verdict is due after {looks}: the trial was "
            "stopped before. Measure again"
        )
    recorded = found.folder / VERDICT_FILE
    same = recorded.exists() and recorded.read_text("utf-8") == verdict.model_dump_json(indent=1) + "\n"
    sentence = verdict_sentence(job.name, verdict, aa=aa, toy=bool(found.manifest.model.get("toy")))
    return Decision(job.name, found.manifest.trial, found.folder, verdict, sentence, arm_differences(found), same)
