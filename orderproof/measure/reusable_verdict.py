"""Whether an earlier trial answers a plan already, so that nothing needs to be measured.

In: a `Plan`, and the evidence and promotion of its job on disk. Out: that trial and its `Outcome`, or None. Writes
nothing. A verdict is recomputed from its trial's passes, never taken from a file that says so.
"""

from __future__ import annotations

import logging

from orderproof.measure.evaluate import judge
from orderproof.measure.outcome import Outcome, outcome_of
from orderproof.measure.plan import Plan
from orderproof.measure.trial_store import VERDICT_FILE, EvidenceError, Trial, read_trials
from orderproof.measure.verdict import Verdict
from orderproof.runs.promotion import read_promotion

_log = logging.getLogger(__name__)


def find_reusable_verdict(plan: Plan, *, let_stand: bool) -> tuple[Trial, Outcome] | None:
    """The newest trial and its outcome, if it measured just what is planned and its verdict is not `invalid`.

    Args:
        let_stand: also where all was made of its verdict that is to be made. Otherwise only a verdict that was reached
            and then lost to a crash: it is to be reported and pinned, and measuring again would spend α on a second
            look at the same question.
    """
    trials = [] if plan.placebo else read_trials(plan.job.reports_dir)
    if not trials or trials[-1].manifest.settings != plan.settings:
        return None
    newest = trials[-1]
    verdict = _verdict(newest)
    if verdict is None or verdict.verdict == "invalid":
        return None
    outcome, name = outcome_of(newest, verdict), newest.manifest.trial
    if not _was_recorded(plan, newest, verdict):
        return newest, outcome.noting(f"trial {name} had come to this verdict and was stopped then: not measured again")
    return (
        (newest, outcome.noting(f"nothing changed since trial {name}, so it stands unmeasured")) if let_stand else None
    )


def _verdict(trial: Trial) -> Verdict | None:
    try:
        return judge(trial)
    except EvidenceError as error:
        _log.warning("trial %s answers nothing any more: %s", trial.manifest.trial, error)
        return None


def _was_recorded(plan: Plan, trial: Trial, verdict: Verdict) -> bool:
    """The verdict is in its folder and the job's order is pinned; a promotion taken back by the user had been."""
    record = read_promotion(plan.job)
    if record is None or not (trial.folder / VERDICT_FILE).exists():
        return False
    pinned_for = {record.trial, record.demoted.trial if record.demoted else None}
    return verdict.verdict != "promote" or trial.manifest.trial in pinned_for
