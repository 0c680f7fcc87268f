"""What becomes of a verdict: page, pictures, MLflow, the order beside its dataset, DVC, git.

In: a job, a trial and its `Outcome`. Out: the `Outcome`, with where each thing lies. The evidence is on disk before any
of this begins, so each step may fail for itself: what failed becomes a note that says what to do, and no verdict is
lost to a tracker that is down. Only an order that must not be pinned is an error.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orderproof.job.errors import OrderproofError
from orderproof.job.files import write_atomically
from orderproof.job.hashing import md5_of
from orderproof.job.model import read_model
from orderproof.job.spec import UNMEASURED_KEYS, Job
from orderproof.lossy.report import LossyReport, lines, write_page
from orderproof.lossy.routing import routing_named
from orderproof.measure import figures, page
from orderproof.measure.outcome import Outcome
from orderproof.measure.plan import Plan
from orderproof.measure.trial_store import VERDICT_FILE, Trial, write_verdict
from orderproof.measure.verdict import refused
from orderproof.orders.order import Order
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.runs import dvc, promotion, publish, trial_tracking
from orderproof.runs.promotion_record import engine_fingerprint

_log = logging.getLogger(__name__)


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
    model = read_model(job.model_path, job.model, job.adapters).fingerprint
    if not job.prompts_path.is_file():
        return Inputs({}, {}, model)  # validation names what is missing, and nothing is recorded then
    return Inputs({job.prompts: md5_of(job.prompts_path)}, dvc.stage_params(job.root, job.name), model)


def current_order(job: Job, prompts: TokenizedPrompts) -> tuple[str, Order]:
    """The dataset's md5, and the order in which the job runs today."""
    md5 = md5_of(job.prompts_path)
    return md5, promotion.current_order(job, md5, prompts.ids)


def refuse(plan: Plan) -> Outcome:
    """The outcome of a plan that refused, kept as the job's newest verdict."""
    assert plan.refusal is not None
    verdict = refused(plan.refusal, plan.rule, sd=plan.noise_sd)
    write_atomically(plan.job.reports_dir / VERDICT_FILE, verdict.model_dump_json(indent=1) + "\n")
    return Outcome(job=plan.job.name, verdict=verdict, toy=plan.model.toy)


def report(job: Job, trial: Trial, outcome: Outcome, prefect_run: str | None) -> Outcome:
    """Keep the verdict, draw its pictures and page, and send the trial to MLflow. Doing it again changes nothing."""
    assert outcome.folder is not None
    write_verdict(trial, outcome.verdict)
    notes: list[str] = []
    with noting(notes, "pictures are missing"):
        figures.draw(trial, outcome.verdict, outcome.folder)
    with noting(notes, "the page is missing"):
        outcome = replace(outcome, page=page.write_page(job, trial, outcome.verdict, outcome.folder))
    with noting(notes, f"MLflow does not have the trial yet: `{trial_tracking.send_later(job, trial)}`"):
        origin = {"prefect_run": prefect_run, "dvc_revision": git_revision(job.root)}
        outcome = replace(outcome, mlflow_run=trial_tracking.log_trial(job, trial, outcome.verdict, **origin))
    return replace(outcome, notes=(*outcome.notes, *notes))


@contextlib.contextmanager
def noting(notes: list[str], what: str) -> Iterator[None]:
    """Whatever fails here becomes a note, because what is to be pinned or recorded waits behind it."""
    try:
        yield
    except OrderproofError as error:
        notes.append(str(error))
    except Exception as error:
        _log.debug("%s", what, exc_info=True)
        notes.append(f"{what} ({type(error).__name__}: {error})")


def record(
    plan: Plan, outcome: Outcome, inputs: Inputs, prompts: TokenizedPrompts, trial: Trial | None = None
) -> Outcome:
    """Pin the promoted order, or have the files say that the current one stays; then DVC and git.

    Doing it again for the same trial changes nothing. That DVC or git failed is a note: the order is pinned then.

    Raises:
        PromotionError: the model or the dataset is not the one that was measured. Nothing is pinned.
        InputsChanged: prompts or parameters are not. Nothing is pinned.
    """
    if outcome.placebo:
        return outcome.noting("a placebo: its record stays out of promotions and DVC")
    job = plan.job
    if read_model(job.model_path, job.model, job.adapters).fingerprint != inputs.model:
        raise promotion.PromotionError(f"{job.model} changed while it was measured: nothing is pinned; measure again")
    dvc.compare_inputs(job.root, inputs.files, inputs.params)
    pinned, notes = _pin(plan, outcome, prompts.ids, trial)
    stage = dvc.stage_of(job.name)
    try:
        recorded = dvc.record_in_dvc(job.root, stage, inputs.files, inputs.params)
        notes += _publish(job, recorded, outcome.sentence())
    except dvc.InputsChanged:
        raise
    except dvc.DvcError as error:
        notes.append(f"not recorded in DVC: {error}. When that is mended: `dvc commit --force {stage}`")
    return replace(outcome, promotion=pinned, notes=(*outcome.notes, *notes))


def _pin(
    plan: Plan, outcome: Outcome, ids: Sequence[str], trial: Trial | None
) -> tuple[promotion.Promotion, list[str]]:
    """The order beside its dataset, and what to know of it."""
    job, verdict = plan.job, outcome.verdict
    if trial is None or verdict.verdict != "promote":
        pinned = promotion.keep_current(job, plan.dataset_md5, ids, trial, verdict, outcome.mlflow_run)
        return pinned, _about_the_promoted(plan, pinned, outcome, trial) if pinned.promoted else []
    standing = promotion.read_promotion(job)
    if standing and standing.demoted and standing.demoted.trial == trial.manifest.trial:
        when = standing.demoted.demoted_utc
        return standing, [f"this promotion was taken back ({when}) and stays so: `orderproof measure {job.name}` anew"]
    return promotion.promote(job, trial, verdict, plan.chosen, ids, outcome.mlflow_run), []


def _about_the_promoted(plan: Plan, pinned: promotion.Promotion, outcome: Outcome, trial: Trial | None) -> list[str]:
    """What a verdict that promoted nothing says of the order that stays promoted."""
    back = f"`orderproof demote {plan.job.name}` goes back to the file's"
    tried_again = pinned.order == plan.chosen.record() and outcome.verdict.verdict in ("keep", "inconclusive")
    if tried_again:
        notes = [f"the promoted order (trial {pinned.trial}) did not carry again: {back}"]
    else:
        notes = [f"the order promoted by trial {pinned.trial} stays; {back}"]
    if pinned.model != plan.model.fingerprint:
        notes.append("it was promoted for another model than the present one")
    elif trial is not None and pinned.engine != engine_fingerprint(trial.manifest):
        notes.append("it was promoted for other engine settings than the present ones")
    return notes


def demote(job: Job, ids: Sequence[str], reason: str) -> tuple[promotion.Promotion, list[str]]:
    """Go back to the file's own order, and tell DVC and git. Returns the record and what to know of it."""
    back = promotion.demote(job, ids, reason)
    notes = _record_again(job, back.headline)
    if job.lossy_k0 is not None:
        notes.append(f"{routing_named(job.lossy_k0)} stays accepted: accept_lossy in params.yaml is yours to remove")
    return back, notes


def keep_lossy(job: Job, report: LossyReport, inputs: Inputs) -> tuple[Path, list[str]]:
    """Keep a lossy comparison beside the job's trials, and tell DVC and git. Returns its page and what to know of it.

    Raises:
        InputsChanged: model, prompts or parameters are not what was compared. Nothing is kept.
    """
    if read_model(job.model_path, job.model, job.adapters).fingerprint != inputs.model:
        raise dvc.InputsChanged(f"{job.model} changed while it was compared: nothing is kept; compare again")
    dvc.compare_inputs(job.root, inputs.files, inputs.params)
    return write_page(job, report), _record_again(job, lines(report)[0])


def _record_again(job: Job, message: str) -> list[str]:
    """Tell DVC and git of files that were written beside a measurement. They stand whatever these say, in notes."""
    stage = dvc.stage_of(job.name)
    try:
        return _publish(job, dvc.record_again(job.root, stage, UNMEASURED_KEYS), message)
    except dvc.DvcError as error:
        return [f"not recorded in DVC: {error}. When that is mended: `dvc commit --force {stage}`"]


def _publish(job: Job, recorded: dvc.Recorded, message: str) -> list[str]:
    """As far as the job asks for it: git and the remotes. Returns what to know of it."""
    if not recorded.recorded:  # inside a stage that is as it should be: DVC records it when the command has ended
        return [] if dvc.inside_a_stage() else [f"not recorded in DVC: {recorded.why}"]
    try:
        return list(publish.publish(job.root, recorded.stage, job.reporting.publish, message).notes)
    except dvc.DvcError as error:
        return [f"not published: {error}"]


def record_outputs(job: Job, stage: str, inputs: Inputs, made: Mapping[str, str], message: str) -> list[str]:
    """Tell DVC what was generated in the job's order, and git as far as the job asks for it.

    Args:
        stage: its name before the `@`.
        made: md5 of further files that it rests on, by path.

    Returns:
        What to know of it.

    Raises:
        DvcError: DVC failed, or an input changed meanwhile: nothing is recorded then.
    """
    name, order = dvc.stage_of(job.name, stage), job.data_dir / promotion.ORDER_FILE
    pinned = {str(order.relative_to(job.root)): md5_of(order)} if order.exists() else {}
    return _publish(job, dvc.record_in_dvc(job.root, name, {**inputs.files, **made, **pinned}, inputs.params), message)


def git_revision(root: Path) -> str | None:
    """The commit that the project stands on; None outside of git, or where git is not installed."""
    try:
        return dvc.run_tool(root, "git", ["git"], ["rev-parse", "HEAD"]).strip()
    except dvc.DvcError:
        return None
