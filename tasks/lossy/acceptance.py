"""May this job be generated with a lossy routing? Only where a person says so, and this job's evidence carries it.

In: a job with or without `accept_lossy`, its model, the prompts' md5 and the order that is about to be sent. Out:
nothing, or a `LossyError` that names what is missing or differs and the command to run. Starts no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orderproof.tasks.asked import asked_of, differences
from orderproof.tasks.evidence import OrderRecord
from orderproof.tasks.jobs import Job
from orderproof.tasks.lossy import LossyError, refuse_k0, routing_named
from orderproof.tasks.lossy.report import LOSSY, SORTED_LOSSY, LossyReport, evidence_path, read_report, scores_said
from orderproof.tasks.models import ModelFacts

FILE_ORDER = "file"


def require_evidence(job: Job, model: ModelFacts, dataset_md5: str, order: OrderRecord | None) -> None:
    """Let a job pass that keeps the model's own routing, or whose lossy one is accepted and carried by its scores.

    Args:
        order: that is about to be sent; None: it is made in windows while the prompts are sent.

    Raises:
        LossyError: a lossy routing is accepted, and there is no evidence, or it is of something else, or its scores in
            the arm that would run (sorted where an order is promoted, otherwise shuffled) are not inside their margin.
    """
    if job.lossy_k0 is None:
        return
    refuse_k0(model, job.lossy_k0)
    if job.engine.replicas > 1:
        raise LossyError(
            f"{_accepted(job)} runs on one engine, and engine.replicas is {job.engine.replicas}: take one of them out"
        )
    if order is None:
        raise LossyError(
            f"{_accepted(job)} cannot be sent in the promoted order, which is of another version of {job.prompts} and "
            f"is made anew while it is sent: `orderproof measure {job.name}`, or {_KEEP}"
        )
    report = _evidence(job)
    arm = LOSSY if order.method == FILE_ORDER else SORTED_LOSSY
    now = {"k0": job.lossy_k0, "dataset_md5": dataset_md5, "scorer": job.measure.scorer, **asked_of(job, model)}
    measured = {"k0": report.k0, "dataset_md5": report.dataset_md5, "scorer": report.scorer, **report.asked}
    if arm == SORTED_LOSSY:  # a shuffled one needs no order of its own
        now, measured = {**now, "order": order.model_dump()}, {**measured, "order": report.order.model_dump()}
    _refuse_other(job, measured, now)
    _refuse_scores(job, report, arm)


def refuse_stream(job: Job) -> None:
    """Raise LossyError for a job with a lossy routing whose prompts come as a stream."""
    if job.lossy_k0 is not None:
        raise LossyError(
            f"{_accepted(job)} was measured on {job.prompts} and says nothing of prompts that come as a stream: {_KEEP}"
        )


_KEEP = "take accept_lossy out of params.yaml to generate with the model's own routing"


def _accepted(job: Job) -> str:
    return f"jobs.{job.name}.accept_lossy: {routing_named(job.lossy_k0)}"


def _measure(job: Job) -> str:
    return f"`orderproof lossy {job.name} --k0 {job.lossy_k0}` measures it; or {_KEEP}"


def _evidence(job: Job) -> LossyReport:
    try:
        report = read_report(job)
    except LossyError as error:
        raise LossyError(f"{error}. {_measure(job)}") from None
    if report is None:
        raise LossyError(
            f"{_accepted(job)} has no evidence: {evidence_path(job)} is not there (`dvc pull` brings one that was "
            f"recorded). {_measure(job)}"
        )
    return report


def _refuse_other(job: Job, measured: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if changed := differences(measured, now):
        raise LossyError(
            f"{_accepted(job)} was measured on something else ({evidence_path(job)}): {'; '.join(changed)}. "
            f"{_measure(job)}"
        )


def _refuse_scores(job: Job, report: LossyReport, arm: str) -> None:
    if report.passed(arm):
        return
    scores = report.scores_of(arm)
    if scores is None:
        raise LossyError(
            f"{_accepted(job)} was measured without scores, so nobody knows what it costs: give the prompts a "
            f"`reference` and the job measure.scorer, then {_measure(job)}"
        )
    raise LossyError(
        f"{_accepted(job)} is not carried by its scores. In the arm {arm!r}: {scores_said(scores)}. Try a larger --k0, "
        f"more blocks or more prompts; or {_KEEP}"
    )
