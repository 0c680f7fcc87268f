"""From a verdict to the job's chosen order: an order is promoted only where the trial's own evidence justifies it."""

from __future__ import annotations

from collections.abc import Sequence

from orderproof.job.spec import Job
from orderproof.measure.plan import Plan
from orderproof.measure.trial_store import Trial
from orderproof.measure.verdict import Verdict
from orderproof.orders.order import Order
from orderproof.orders.order_record import OrderRecord
from orderproof.outputs.passes import CANDIDATE
from orderproof.runs.promotion import (
    PromotionError,
    keep_current,
    read_promotion,
    refuse_changed_prompts,
    write_promotion,
)
from orderproof.runs.promotion_record import Evidence, Promotion, VerdictSummary, engine_fingerprint


def promote_or_keep(
    plan: Plan, ids: Sequence[str], trial: Trial, verdict: Verdict, mlflow_run: str | None
) -> tuple[Promotion, list[str]]:
    """Write the job's chosen order after a verdict: the candidate if it promotes, otherwise the current order stays.

    Args:
        ids: of all prompts, in the file's order.

    Returns:
        The record, and notes on what the verdict means for an order that was promoted before.

    Raises:
        PromotionError: the evidence does not justify the order, or the prompts changed. Nothing is written.
    """
    job, evidence = plan.job, evidence_of(trial, verdict, mlflow_run)
    refuse_foreign(job, trial)
    if verdict.verdict != "promote":
        kept = keep_current(job, plan.dataset_md5, ids, evidence)
        return kept, _notes_on_promoted(plan, kept, trial, verdict) if kept.promoted else []
    held = read_promotion(job)
    if held and held.demoted and held.demoted.trial == trial.manifest.trial:
        when = held.demoted.demoted_utc
        return held, [
            f"this promotion was demoted ({when}) and stays so; `orderproof measure {job.name}` measures anew"
        ]
    refuse_untried(job, trial, plan.chosen, ids)
    return write_promotion(job, plan.chosen, ids, evidence), []


def refuse_foreign(job: Job, trial: Trial) -> None:
    """Raise PromotionError for an A/A trial, a trial of another job, or prompts that changed since."""
    manifest = trial.manifest
    if manifest.aa:
        raise PromotionError(f"trial {manifest.trial} is an A/A test: it never decides a job's order")
    if manifest.job != job.name:
        raise PromotionError(f"trial {manifest.trial} is of the job {manifest.job!r}, not of {job.name!r}")
    refuse_changed_prompts(job, manifest.dataset_md5)


def refuse_untried(job: Job, trial: Trial, order: Order, ids: Sequence[str]) -> None:
    """Raise PromotionError unless the order is the registered one and, over the measured prompts, the one timed."""
    manifest, blocks = trial.manifest, trial.blocks()
    wanted = order.record().model_copy(update={"sha256": manifest.candidate.sha256})  # that is over measured prompts
    if wanted != manifest.candidate:
        other = [
            name for name in OrderRecord.model_fields if getattr(wanted, name) != getattr(manifest.candidate, name)
        ]
        raise PromotionError(
            f"{job.name}: the order has another {', '.join(other)} than trial {manifest.trial} registered"
        )
    if not len(order) == len(ids) == manifest.prompts_total:
        raise PromotionError(
            f"{job.name}: an order of {len(order)} for {len(ids)} prompts, but trial {manifest.trial} registered "
            f"{manifest.prompts_total}"
        )
    if not blocks:
        raise PromotionError(f"trial {manifest.trial} has no valid block, so it promotes nothing")
    rows = trial.tokens(blocks[0].passes[CANDIDATE].pass_id, ["prompt_id"])["prompt_id"].to_pylist()
    timed = list(dict.fromkeys(rows))  # a prompt has a row for each of its samples
    measured = set(timed)
    if [ids[index] for index in order.permutation if ids[index] in measured] != timed:
        raise PromotionError(f"{job.name}: the {order.method} order is not the one that trial {manifest.trial} timed")


def evidence_of(trial: Trial | None, verdict: Verdict | None, mlflow_run: str | None = None) -> Evidence:
    """What order.json says of the verdict behind it."""
    summary = summary_of(verdict) if verdict else None
    if trial is None:
        return Evidence(verdict=summary, mlflow_run=mlflow_run)
    manifest = trial.manifest
    return Evidence(
        verdict=summary,
        trial=manifest.trial,
        manifest_sha256=manifest.sha256,
        model=manifest.model["fingerprint"],
        engine=_engine_fingerprint(trial),
        mode=manifest.engine["mode"],
        mlflow_run=mlflow_run,
    )


def summary_of(verdict: Verdict) -> VerdictSummary:
    """A verdict without the numbers it rests on."""
    same = {name: getattr(verdict, name) for name in VerdictSummary.model_fields if name != "outputs"}
    return VerdictSummary(**same, outputs=verdict.outputs.answer if verdict.outputs else None)


def _notes_on_promoted(plan: Plan, kept: Promotion, trial: Trial, verdict: Verdict) -> list[str]:
    """What a verdict that promoted nothing means for the order that stays promoted."""
    demote = f"`orderproof demote {plan.job.name}` goes back to the file's order"
    if kept.order == plan.chosen.record() and verdict.verdict in ("keep", "inconclusive"):
        notes = [f"a new trial did not confirm the promoted order (trial {kept.trial}); {demote}"]
    else:
        notes = [f"the order promoted by trial {kept.trial} stays; {demote}"]
    if kept.model != plan.model.fingerprint:
        notes.append("it was promoted for another model than the present one")
    elif kept.engine != _engine_fingerprint(trial):
        notes.append("it was promoted for other engine settings than the present ones")
    return notes


def _engine_fingerprint(trial: Trial) -> str:
    engine = trial.manifest.engine
    return engine_fingerprint(engine["args"], engine["env"], engine.get("replicas", 1))
