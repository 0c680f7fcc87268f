"""The steps of a measurement, one function each. story.py composes them; tasks/measure.py makes them Prefect tasks."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import NamedTuple

from orderproof.engines.admission import log_what_may_reorder
from orderproof.engines.protocol import Engine
from orderproof.job.formatting import percentage, signed
from orderproof.job.spec import Job
from orderproof.measure import page, pictures, trial
from orderproof.measure.plan import Plan
from orderproof.measure.plan import make_plan as plan_trial
from orderproof.measure.predicted_gain import predicted_gain
from orderproof.measure.promote import evidence_of, promote_or_keep
from orderproof.measure.record import refused_run, trial_run
from orderproof.measure.tracking import tracking_of
from orderproof.measure.trial_progress import TrialProgress
from orderproof.measure.trial_store import Trial, read_history, write_verdict
from orderproof.measure.verdict import Verdict, refused
from orderproof.prompts.source import open_prompts
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.runs import recorder, route_artifacts
from orderproof.runs.inputs import Inputs, refuse_changed
from orderproof.runs.promotion import current_order, keep_current
from orderproof.runs.promotion_record import Promotion
from orderproof.runs.recorder import Presentation
from orderproof.runs.run import Run
from orderproof.runs.run_store import verb_folder, write_run
from orderproof.validation.validate import validate_prompts_and_sampling

logger = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """What a trial came to."""

    trial: Trial
    verdict: Verdict
    notes: tuple[str, ...] = ()


def validate(job: Job) -> TokenizedPrompts:
    """Check the prompts with Great Expectations, before anything is spent."""
    return validate_prompts_and_sampling(job, job.root / "reports" / job.name / "validation")


def make_plan(job: Job, prompts: TokenizedPrompts, inputs: Inputs, aa: bool) -> Plan:
    """Decide arms, seeds and looks, or why nothing should be measured."""
    log_what_may_reorder(job)
    route_artifacts.restore_routes(job)
    dataset_md5 = inputs.dataset_md5(job)
    plan = plan_trial(
        job,
        inputs.model,
        prompts,
        dataset_md5,
        current_order(job, dataset_md5, prompts.ids),
        read_history(verb_folder(job, "measure")),
        aa=aa,
        aa_trials=read_history(verb_folder(job, "aa")),
        predicted=predicted_gain(job, inputs.model, dataset_md5),
    )
    if plan.refusal is None:
        _log_power(plan)
    return plan


def warm_up(plan: Plan, engine: Engine, progress: TrialProgress) -> Trial:
    """Register the trial, then run one pass that does not count."""
    begun = trial.begin(plan, engine, progress.update)
    route_artifacts.keep(plan.job, plan.chosen, begun.folder)
    return begun


def run_block(plan: Plan, engine: Engine, so_far: Trial, number: int, progress: TrialProgress) -> Trial:
    """Run one pass of every arm, in an order that a coin decides."""
    after = trial.run_block(plan, engine, so_far, number, progress.update)
    progress.log_block(after, number)
    return after


def report(plan: Plan, outcome: Outcome, prefect_run: str | None) -> Run:
    """Keep the verdict with its pictures and page, and send the trial to MLflow. Doing it again changes nothing."""
    write_verdict(outcome.trial, outcome.verdict)
    run = recorder.with_origin(plan.job, trial_run(plan, outcome.trial, outcome.verdict), prefect_run)
    return recorder.keep(plan.job, run, presentation(plan.job, outcome)).with_notes(*outcome.notes)


def refuse(job: Job, inputs: Inputs, reason: str, prefect_run: str | None) -> Run:
    """Keep a refusal as the job's newest verdict; the job stays in its current order."""
    verdict = refused(reason)
    run = recorder.with_origin(job, refused_run(job, inputs, verdict), prefect_run)
    run = recorder.keep(job, run, Presentation(tracking=partial(tracking_of, job)))
    refuse_changed(job, inputs)
    with open_prompts(job) as prompts:
        kept = keep_current(job, inputs.dataset_md5(job), list(prompts.ids), evidence_of(None, verdict))
    return _record(job, run, kept, [], inputs)


def promote(plan: Plan, run: Run, outcome: Outcome, inputs: Inputs, prompts: TokenizedPrompts) -> Run:
    """Write the job's chosen order and record it in DVC, and publish it as far as the job asks for it.

    Raises:
        InputsChanged, PromotionError: prompts, model or parameters are not what was measured. Nothing is promoted.
    """
    if run.verb == "aa":
        return run.with_notes("an A/A test promotes nothing and is not recorded in DVC")
    refuse_changed(plan.job, inputs)
    promotion, notes = promote_or_keep(plan, prompts.ids, outcome.trial, outcome.verdict, run.mlflow_run)
    return _record(plan.job, run, promotion, notes, inputs)


def presentation(job: Job, outcome: Outcome) -> Presentation:
    """Pictures, page and MLflow's part of a trial."""
    trial_, verdict = outcome.trial, outcome.verdict
    return Presentation(
        draw=partial(_draw, trial_, verdict),
        page=lambda _, folder: page.verdict_page(job, trial_, verdict, folder),
        tracking=partial(tracking_of, job),
    )


def _draw(measured: Trial, verdict: Verdict, folder: Path) -> None:
    pictures.draw(measured, verdict, folder)


def _record(job: Job, run: Run, promotion: Promotion, notes: list[str], inputs: Inputs) -> Run:
    order = f"order in use: {promotion.order.method}" + (" (promoted)" if promotion.promoted else " (the file's own)")
    details = {**run.details, "promoted": promotion.promoted, "order": promotion.order.method}
    run = run.model_copy(update={"lines": (*run.lines, order), "details": details})
    write_run(job, run.model_copy(update={"notes": ()}))  # they are of this command: the same trial has one record
    verb_folder(job, "lossy").mkdir(parents=True, exist_ok=True)  # an output of the stage, empty or not
    return recorder.record(job, run.with_notes(*notes), inputs)


def _log_power(plan: Plan) -> None:
    """Before anything is spent: how long the trial may take, and how small a gain it can detect."""
    gain, excess = plan.detectable_gain_before, plan.detectable_excess_before
    logger.info("at most %d blocks of %d passes", max(plan.rule.looks), len(plan.orders))
    if gain is None:
        logger.info("no earlier trial: the smallest detectable gain is reported afterwards")
    else:
        logger.info("smallest gain detected with 80%% power: %s", signed(gain))
    if excess is not None:
        logger.info("smallest detectable excess of changed outputs over reshuffling: %s", percentage(excess))
