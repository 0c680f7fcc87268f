"""What becomes of a verdict: page, pictures, MLflow, the order beside its dataset, DVC, git.

In: a job, a trial and its `Outcome`. Out: the `Outcome`, with where each thing lies. The evidence is on disk before any
of this begins, so each step may fail for itself: what failed becomes a note that says what to do, and no verdict is
lost to a tracker that is down. Only an order that must not be pinned is an error.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orderproof.tasks import promotion, tracking
from orderproof.tasks.evidence import Trial, write_verdict
from orderproof.tasks.jobs import Job
from orderproof.tasks.models import read_model
from orderproof.tasks.orders import Order
from orderproof.tasks.outcome import Outcome
from orderproof.tasks.plan import Plan
from orderproof.tasks.promotion import dvc, publish
from orderproof.tasks.prompts import TokenizedPrompts, dataset_md5
from orderproof.tasks.report import figures, page


@dataclass(frozen=True)
class Inputs:
    """What a measurement rests on, as it was before anything was spent: compared before anything is recorded."""

    files: Mapping[str, str]  # md5 by path
    params: Mapping[str, Any]  # the DVC parameters of the job's stage
    model: str  # fingerprint


def inputs_of(job: Job) -> Inputs:
    """Take the hashes that `record` compares again.

    Raises:
        ModelError: the model's folder is missing or unreadable.
    """
    model = read_model(job.model_path, job.model).fingerprint
    if not job.prompts_path.is_file():
        return Inputs({}, {}, model)  # validation names what is missing, and nothing is recorded then
    return Inputs({job.prompts: dataset_md5(job.prompts_path)}, dvc.stage_params(job.root, job.name), model)


def current_order(job: Job, prompts: TokenizedPrompts) -> tuple[str, Order]:
    """The dataset's md5, and the order in which the job runs today."""
    md5 = dataset_md5(job.prompts_path)
    return md5, promotion.current_order(job, md5, prompts.ids)


def report(job: Job, trial: Trial, outcome: Outcome, prefect_run: str | None) -> Outcome:
    """Keep the verdict, draw its pictures and page, and send the trial to MLflow."""
    assert outcome.folder is not None
    write_verdict(trial, outcome.verdict)
    figures.draw(trial, outcome.verdict, outcome.folder)
    outcome = replace(outcome, page=page.write_page(job, trial, outcome.verdict, outcome.folder))
    revision = git_revision(job.root)
    try:
        run = tracking.log_trial(job, trial, outcome.verdict, prefect_run=prefect_run, dvc_revision=revision)
    except tracking.TrackingError as error:
        return outcome.noting(str(error))
    return replace(outcome, mlflow_run=run)


def record(
    plan: Plan, outcome: Outcome, inputs: Inputs, prompts: TokenizedPrompts, trial: Trial | None = None
) -> Outcome:
    """Pin the promoted order, or have the files say that the current one stays; then DVC and git.

    Raises:
        PromotionError: the dataset or the model is not the one that was measured. Nothing is pinned.
        DvcError: an input changed meanwhile. Nothing is recorded.
    """
    if outcome.placebo:
        return outcome.noting("a placebo: its record stays out of promotions and DVC")
    job, verdict = plan.job, outcome.verdict
    if read_model(job.model_path, job.model).fingerprint != inputs.model:
        raise promotion.PromotionError(f"{job.model} changed while it was measured: nothing is pinned; measure again")
    if trial is not None and verdict.verdict == "promote":
        pinned = promotion.promote(job, trial, verdict, plan.chosen, prompts.ids, outcome.mlflow_run)
    else:
        pinned = promotion.keep_current(job, plan.dataset_md5, prompts.ids, trial, verdict, outcome.mlflow_run)
        if pinned.promoted:
            back = f"`orderproof demote {job.name}` goes back to the file's"
            outcome = outcome.noting(f"the order promoted by trial {pinned.trial} stays; {back}")
    outcome = replace(outcome, promotion=pinned)
    recorded = dvc.record_in_dvc(job.root, dvc.stage_of(job.name), inputs.files, inputs.params)
    return replace(outcome, notes=(*outcome.notes, *_publish(job, recorded, outcome.sentence())))


def demote(job: Job, ids: Sequence[str], reason: str) -> tuple[promotion.Promotion, list[str]]:
    """Go back to the file's own order, and tell DVC and git. Returns the record and what to know of it."""
    back = promotion.demote(job, ids, reason)
    recorded = dvc.record_again(job.root, dvc.stage_of(job.name))
    return back, _publish(job, recorded, back.headline)


def _publish(job: Job, recorded: dvc.Recorded, message: str) -> list[str]:
    """As far as the job asks for it: git and the remotes. Returns what to know of it."""
    if not recorded.recorded:
        return [f"not recorded in DVC: {recorded.why}"]
    return list(publish.publish(job.root, recorded.stage, job.reporting.publish, message).notes)


def git_revision(root: Path) -> str | None:
    """The commit that the project stands on; None outside of git."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None if asked.returncode == 0 else None
