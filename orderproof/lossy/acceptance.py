"""May this job be generated with a lossy routing? Only where a person says so, and this job's evidence carries it.

In: a job with or without `accept_lossy`, its model and the prompts' md5; and what an engine says of itself. Out:
nothing, or a `LossyError` that names what is missing or differs and the command to run. Starts no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orderproof.engines.protocol import EngineInfo
from orderproof.job.model import ModelFacts
from orderproof.job.output_key import differences, output_key
from orderproof.job.spec import Job
from orderproof.lossy.order import promoted_for
from orderproof.lossy.report import LOSSY, SORTED_LOSSY, LossyReport, evidence_path, read_report, scores_said
from orderproof.lossy.routing import LossyError, refuse_k0, routing_named


def require_evidence(job: Job, model: ModelFacts, dataset_md5: str) -> None:
    """Let a job pass that keeps the model's own routing, or whose lossy one is accepted and carried by its scores.

    Raises:
        LossyError: a lossy routing is accepted, and there is no evidence, or it is of something else, or its scores in
            the arm that would run (sorted where an order is promoted, otherwise shuffled) do not carry it.
    """
    if job.lossy_k0 is None:
        return
    refuse_k0(model, job.lossy_k0)
    if job.engine.replicas > 1:
        raise LossyError(
            f"{_accepted(job)} runs on one engine, and engine.replicas is {job.engine.replicas}: take one of them out"
        )
    try:
        promoted = promoted_for(job, dataset_md5)
    except LossyError as error:
        raise LossyError(f"{_accepted(job)} cannot be used: {error}; or {_KEEP}") from None
    report = _evidence(job)
    now = {"dataset_md5": dataset_md5, "scorer": job.measure.scorer, **output_key(job, model)}
    measured = {"dataset_md5": report.dataset_md5, "scorer": report.scorer, **report.asked}
    if promoted:  # a shuffled arm has no order of its own
        now, measured = {**now, "order": promoted.model_dump()}, {**measured, "order": report.order.model_dump()}
    _refuse_other(job, report, measured, now)
    _refuse_weak(job, report, SORTED_LOSSY if promoted else LOSSY)


def require_engine(job: Job, engine: EngineInfo) -> None:
    """The same of the engine, once it is there: which one it is shows only when it runs.

    Raises:
        LossyError: the accepted routing was measured on other versions or another kind of device.
    """
    if job.lossy_k0 is not None:
        report = _evidence(job)
        _refuse_other(job, report, report.engine, engine.kind)


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
    assert job.lossy_k0 is not None
    try:
        report = read_report(job, job.lossy_k0)
    except LossyError as error:
        raise LossyError(f"{error}. {_measure(job)}") from None
    if report is None:
        raise LossyError(
            f"{_accepted(job)} has no evidence: {evidence_path(job, job.lossy_k0)} is not there (`dvc pull` brings one "
            f"that was recorded). {_measure(job)}"
        )
    return report


def _refuse_other(job: Job, report: LossyReport, measured: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if changed := differences(measured, now):
        raise LossyError(
            f"{_accepted(job)} was measured on something else ({evidence_path(job, report.k0)}): {'; '.join(changed)}. "
            f"{_measure(job)}"
        )


def _refuse_weak(job: Job, report: LossyReport, arm: str) -> None:
    if why := report.weakness(arm):
        raise LossyError(
            f"{_accepted(job)} is not carried by its evidence. The arm {arm!r}: {scores_said(report.scores_of(arm))}; "
            f"{why}. Then {_measure(job)}"
        )
