"""A generation of a job's outputs as the record of a run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from orderproof.engines.protocol import EngineInfo
from orderproof.generate.delivery import Delivered, kinds_text
from orderproof.generate.generation import Batch, Generated
from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job
from orderproof.lossy.routing import routing_name
from orderproof.runs.promotion import read_promotion
from orderproof.runs.run import Basis, Figure, Run
from orderproof.runs.run_store import identity_of


def generation_run(
    batch: Batch,
    order_reason: str,
    generated: Generated,
    engine: EngineInfo | None,
    delivered: Delivered,
    started: datetime.datetime,
) -> Run:
    """The run of a job whose outputs.parquet is written. Its figures are of this run alone, not of those it resumed.

    Args:
        engine: None if nothing was left to generate.
    """
    job = batch.job
    outputs = str(delivered.path.relative_to(job.root))
    rates, promotion = throughput(batch, generated), _promotion(job)
    return Run(
        **identity_of(job, "generate", started),
        answer="complete",
        sentence=_sentence(batch, delivered, rates),
        lines=tuple(_lines(job, order_reason, delivered, rates)),
        next_command=f"orderproof reproduce {job.name}  (generates everything again and compares)",
        basis=basis_of(batch, order_reason, engine),
        figures=(
            Figure(name="prompts", value=len(batch.source)),
            Figure(name="resumed", value=batch.checkpoint.resumed),
            Figure(name="generated", value=generated.outputs),
            Figure(name="failed", value=delivered.failed),
            *generation_figures(generated, engine),
            *(Figure(name=name, value=value) for name, value in rates.items()),
            *_saved(promotion, generated),
        ),
        details={
            "outputs_md5": md5_of(delivered.path),
            "promotion": promotion,
            "failure_kinds": dict(delivered.kinds),
            "failures": [list(failure) for failure in delivered.failures] if job.reporting.log_text else [],
            "replicas": job.engine.replicas,
            "replica_wall_s": list(generated.stats.replica_s) if generated.stats else [],
            "curve": [
                [round(ms, 3), round(running, 2), round(waiting, 2)] for ms, running, waiting in _curve(generated)
            ],
        },
        files={"outputs": outputs},
    )


def _promotion(job: Job) -> dict[str, Any] | None:
    """The trial whose order, or way to order, this was, with the gain that it measured; None: none is promoted."""
    promotion = read_promotion(job)
    if promotion is None or not promotion.promoted:
        return None
    verdict = promotion.verdict
    gains = verdict and {"gain": verdict.gain, "gain_low": verdict.gain_low, "gain_high": verdict.gain_high}
    return {"trial": promotion.trial, **(gains or {})}


def _saved(promotion: Mapping[str, Any] | None, generated: Generated) -> tuple[Figure, ...]:
    """Seconds that the run would have taken more in the order that the trial compared with; empty: unknown."""
    if promotion is None or promotion.get("gain") is None or generated.stats is None:
        return ()
    saved = {name: generated.stats.wall_s * (promotion[name] or 0.0) for name in ("gain", "gain_low", "gain_high")}
    return (Figure(name="saved_s", value=saved["gain"], low=saved["gain_low"], high=saved["gain_high"]),)


def basis_of(batch: Batch, order_reason: str, engine: EngineInfo | None) -> Basis:
    """What a generation rests on."""
    job = batch.job
    return Basis.of(
        job,
        batch.model,
        batch.file.md5,
        len(batch.source),
        order=batch.checkpoint.order.record(),
        order_reason=order_reason,
        lossy_k0=job.lossy_k0,
        versions=dict(engine.versions) if engine else {},
        machine=dict(engine.machine) if engine else {},
    )


def generation_figures(generated: Generated, engine: EngineInfo | None) -> tuple[Figure, ...]:
    """What every generation counts: tokens, and seconds of the engine at work and loading."""
    return (
        Figure(name="prompt_tokens", value=generated.prompt_tokens),
        Figure(name="output_tokens", value=generated.output_tokens),
        Figure(name="wall_s", value=generated.stats.wall_s if generated.stats else 0.0),
        Figure(name="load_s", value=engine.load_s if engine else 0.0),
    )


def throughput(batch: Batch, generated: Generated) -> Mapping[str, float | None]:
    """Rates of a run; empty where nothing was left to generate."""
    figures, steps = generated.stats, generated.steps
    if figures is None or not generated.outputs:
        return {}
    price = batch.job.reporting.price_per_hour
    return {
        "throughput_req_s": generated.outputs / figures.wall_s,
        "throughput_tok_s": generated.output_tokens / figures.wall_s,
        "time_per_batch_ms": steps.percentile(50),  # median of a scheduler step
        "time_per_batch_p95_ms": steps.percentile(95),
        "steps": steps.steps,
        "running_mean": steps.running_mean,
        "waiting_mean": steps.waiting_mean,
        "preempted": figures.preempted,
        "inversions": generated.inversions,
        "imbalance": figures.imbalance,  # the slowest replica's time over their mean: above 1, others were idle
        "cost_per_1k_requests": 1000 * price * figures.wall_s / 3600 / generated.outputs if price else None,
    }


def lossy_prefix(k0: int | None) -> str:
    """What a sentence about a run begins with: nothing where the model's own routing was kept."""
    return "" if k0 is None else f"{routing_name(k0)}: "


def _curve(generated: Generated) -> list[list[float]]:
    curve: list[list[float]] = generated.steps.curve().tolist()
    return curve


def _sentence(batch: Batch, delivered: Delivered, rates: Mapping[str, float | None]) -> str:
    job = batch.job
    sentence = f"{lossy_prefix(job.lossy_k0)}{job.name}: {len(batch.source)} outputs in the file's order"
    if batch.checkpoint.resumed:
        sentence += f", {batch.checkpoint.resumed} of them resumed"
    if delivered.failed:
        sentence += f", {delivered.failed} failed"
    if rates:
        method = batch.checkpoint.order.method
        rate, tokens = rates["throughput_req_s"] or 0, rates["throughput_tok_s"] or 0
        sentence += f"; {rate:.2f} req/s, {tokens:.0f} tok/s in {method} order"
        if (imbalance := rates["imbalance"]) is not None:
            sentence += f" on {job.engine.replicas} replicas, the slowest took {imbalance:.2f} times their mean"
    return sentence


def _lines(job: Job, order_reason: str, delivered: Delivered, rates: Mapping[str, float | None]) -> list[str]:
    lines = [f"order: {order_reason}"]
    if rates:
        if inversions := rates["inversions"]:
            lines.append(f"NOT in this order: the engine's scheduler admitted {inversions:.0f} prompts before one sent "
                         "earlier (engine.args.scheduling_policy, scheduler_cls)")  # fmt: skip
        if rates["steps"]:  # a server tells of none
            median, p95 = rates["time_per_batch_ms"] or 0, rates["time_per_batch_p95_ms"] or 0
            lines.append(f"time per batch: median {median:.1f} ms, p95 {p95:.1f} ms")
        if (cost := rates["cost_per_1k_requests"]) is not None:
            lines.append(f"cost: {cost:.4g} {job.reporting.currency} per thousand requests")
    if delivered.failed and not job.reporting.log_text:
        where = delivered.path.relative_to(job.root)
        return [*lines, f"failed: {kinds_text(delivered.kinds)}: the column `error` of {where} has the reasons"]
    lines += [f"failed: {prompt_id}: {reason}" for prompt_id, reason in delivered.failures]
    more = delivered.failed - len(delivered.failures)
    return [*lines, *([f"failed: and {more} more"] if more > 0 else [])]
