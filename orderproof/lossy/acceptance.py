"""Check that a job may generate with a lossy routing: a person accepts it, and this job's evidence supports it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orderproof.engines.protocol import EngineInfo
from orderproof.job.errors import OrderproofError
from orderproof.job.model import ModelFacts
from orderproof.job.output_key import differences, output_key
from orderproof.job.spec import Job
from orderproof.lossy.order import promoted_for
from orderproof.lossy.report import LOSSY, SORTED_LOSSY, LossyReport, find_report, score_text
from orderproof.lossy.routing import LossyError, refuse_k0, routing_name
from orderproof.runs.run_store import verb_folder


def require_evidence(job: Job, model: ModelFacts, dataset_md5: str) -> None:
    """Allow a job with the model's own routing, or with an accepted lossy routing that its scores support.

    Raises:
        LossyError: a lossy routing is accepted, but there is no evidence, it has other conditions, or the
            scores of the arm that would run (sorted if an order is promoted, otherwise shuffled) do not support it.
    """
    if job.lossy_k0 is None:
        return
    refuse_k0(model, job.lossy_k0)
    if job.engine.replicas > 1:
        raise LossyError(
            f"{_accepted(job)} runs only on one engine, but engine.replicas is {job.engine.replicas}. Remove one of "
            "the two settings"
        )
    try:
        promoted = promoted_for(job, dataset_md5)
    except LossyError as error:
        raise LossyError(f"{_accepted(job)} cannot be used: {error}; or {_REMOVE}") from None
    report, path = _evidence(job)
    now = {"dataset_md5": dataset_md5, "scorer": job.measure.scorer, **output_key(job, model)}
    measured = {"dataset_md5": report.dataset_md5, "scorer": report.scorer, **report.output_key}
    if promoted:  # the shuffled arm has no fixed order
        now, measured = {**now, "order": promoted.model_dump()}, {**measured, "order": report.order.model_dump()}
    _refuse_other(job, path, measured, now)
    _refuse_weak(job, report, SORTED_LOSSY if promoted else LOSSY)


def require_engine(job: Job, engine: EngineInfo) -> None:
    """Check the engine in the same way after its start, when its versions and device are known.

    Raises:
        LossyError: the accepted routing was measured with other versions or on another kind of device.
    """
    if job.lossy_k0 is not None:
        report, path = _evidence(job)
        _refuse_other(job, path, report.engine, engine.kind)


def refuse_stream(job: Job) -> None:
    """Raise LossyError for a job with a lossy routing whose prompts arrive as a stream."""
    if job.lossy_k0 is not None:
        raise LossyError(
            f"{_accepted(job)} was measured on {job.prompts_name} and is not valid for a stream of other prompts: "
            f"{_REMOVE}"
        )


_REMOVE = "remove accept_lossy from params.yaml to generate with the model's own routing"


def _accepted(job: Job) -> str:
    return f"jobs.{job.name}.accept_lossy: {routing_name(job.lossy_k0)}"


def _remedy(job: Job) -> str:
    return f"Measure it with `orderproof lossy {job.name} --k0 {job.lossy_k0}`, or {_REMOVE}"


def _evidence(job: Job) -> tuple[LossyReport, Path]:
    assert job.lossy_k0 is not None
    try:
        found = find_report(job, job.lossy_k0)
    except OrderproofError as error:
        raise LossyError(f"{error}. {_remedy(job)}") from None
    if found is None:
        raise LossyError(
            f"{_accepted(job)} has no evidence under {verb_folder(job, 'lossy')} (`dvc pull` gets recorded evidence). "
            f"{_remedy(job)}"
        )
    return found


def _refuse_other(job: Job, path: Path, measured: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if changed := differences(measured, now):
        raise LossyError(
            f"{_accepted(job)} was measured under other conditions ({path}): {'; '.join(changed)}. {_remedy(job)}"
        )


def _refuse_weak(job: Job, report: LossyReport, arm: str) -> None:
    if why := report.weakness(arm):
        raise LossyError(
            f"{_accepted(job)} is not supported by its evidence. The arm {arm!r}: {score_text(report.scores_of(arm))}; "
            f"{why}. Then: {_remedy(job)}"
        )
