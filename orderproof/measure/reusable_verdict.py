"""Whether an earlier trial answers a plan already, so that nothing needs to be measured."""

from __future__ import annotations

import logging

from orderproof.measure.evaluate import judge
from orderproof.measure.plan import Plan
from orderproof.measure.steps import Outcome
from orderproof.measure.trial_store import VERDICT_FILE, EvidenceError, Trial, read_trials
from orderproof.measure.verdict import Verdict
from orderproof.runs.promotion import read_promotion
from orderproof.runs.run_store import verb_folder

logger = logging.getLogger(__name__)


def find_reusable_verdict(plan: Plan, *, only_if_changed: bool) -> Outcome | None:
    """The newest trial and its verdict, if it measured exactly what is planned and the verdict is not `invalid`.

    The verdict is recomputed from the trial's passes, never taken from a file.

    Args:
        only_if_changed: also a verdict that was recorded completely. Otherwise only a verdict that was reached and then
            lost to a crash: measuring again would spend alpha on a second look at the same question.
    """
    trials = [] if plan.aa else read_trials(verb_folder(plan.job, "measure"))
    if not trials or trials[-1].manifest.settings != plan.settings:
        return None
    newest = trials[-1]
    verdict, name = _verdict(newest), newest.manifest.trial
    if verdict is None or verdict.verdict == "invalid":
        return None
    if not _was_recorded(plan, newest, verdict):
        return Outcome(
            newest, verdict, (f"trial {name} reached this verdict and was then stopped: not measured again",)
        )
    if only_if_changed:
        return Outcome(
            newest, verdict, (f"nothing changed since trial {name}: its verdict stands, nothing was measured",)
        )
    return None


def _verdict(trial: Trial) -> Verdict | None:
    try:
        return judge(trial)
    except EvidenceError as error:
        logger.warning("trial %s cannot be used any more: %s", trial.manifest.trial, error)
        return None


def _was_recorded(plan: Plan, trial: Trial, verdict: Verdict) -> bool:
    """The verdict is in its folder and the job's order is written; a promotion that the user demoted had been."""
    record = read_promotion(plan.job)
    if record is None or not (trial.folder / VERDICT_FILE).exists():
        return False
    promoted_for = {record.trial, record.demoted.trial if record.demoted else None}
    return verdict.verdict != "promote" or trial.manifest.trial in promoted_for
