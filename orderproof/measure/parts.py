"""What a gain is made of: prefixes found in the cache, fuller batches, faster steps, preemptions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orderproof.job.formatting import percentage
from orderproof.measure.trial_records import Pass
from orderproof.measure.trial_store import Trial
from orderproof.outputs.passes import CANDIDATE, CONTROL


@dataclass(frozen=True)
class Part:
    """One part of a gain, and how it is known."""

    name: str
    gain: float | None  # as a fraction; None: not known
    known_by: str


def gain_parts(trial: Trial) -> tuple[Part, ...]:
    """Parts of the gain over all complete blocks; empty without one. They need not add up to it exactly."""
    blocks = trial.blocks()
    if not blocks:
        return ()
    own, other = ([block.passes[arm] for block in blocks] for arm in (CANDIDATE, CONTROL))
    preempted = [sum(p.preempted or 0 for p in passes) for passes in (own, other)]
    unknown = any(p.preempted is None for p in (*own, *other))
    return (
        Part("prefix reuse", prefix_gain(trial), _known_by_cache(own, other)),
        Part("fuller batches", _ratio(_mean(own, "running_mean"), _mean(other, "running_mean")), "sequences per step"),
        Part(
            "faster steps",
            _ratio(_mean(other, "time_per_batch_ms"), _mean(own, "time_per_batch_ms")),
            "median time of a step: mostly fewer experts",
        ),
        Part(
            "preemptions",
            None,
            "not told apart: the arms share runs" if unknown else f"{preempted[0]} against {preempted[1]} requests",
        ),
    )


def arm_differences(trial: Trial) -> tuple[str, ...]:
    """What happened to the candidate's requests more or less often than to the control's, beside their order.

    Preemptions of arms that share their runs cannot be told apart.
    """
    own, other = ([block.passes[arm] for block in trial.blocks()] for arm in (CANDIDATE, CONTROL))
    lines = []
    if all(timed.preempted is not None for timed in (*own, *other)):
        counts = [sum(timed.preempted or 0 for timed in passes) for passes in (own, other)]
        requests = [sum(timed.requests for timed in passes) for passes in (own, other)]
        if counts[0] != counts[1]:
            lines.append(
                f"preempted: {counts[0]} of the candidate's {requests[0]} requests, {counts[1]} of the control's "
                f"{requests[1]}: the KV cache is too small for the batch, and its size is part of this gain"
            )
    if own and (hits := [percentage(share) for share in _cached_shares(own, other)]) and hits[0] != hits[1]:
        lines.append(f"prefix cache: {hits[0]} of the candidate's prompt tokens were found in it, {hits[1]} of the "
                     "control's")  # fmt: skip
    cut = [sum(part.cut_short for part in trial.slices if part.arm == arm) for arm in (CANDIDATE, CONTROL)]
    if cut[0] != cut[1]:
        lines.append(f"cut short by the model's length: {cut[0]} answers of the candidate, {cut[1]} of the control")
    return tuple(lines)


def prefix_gain(trial: Trial) -> float:
    """The part of the gain that prompt tokens found in the cache make: their prefill that was saved, per work."""
    cost = trial.manifest.slices.warm_up.prefill_cost
    saved = []
    for arm in (CANDIDATE, CONTROL):
        passes = [block.passes[arm] for block in trial.blocks()]
        work = sum(p.output_tokens + cost * p.prompt_tokens for p in passes)
        saved.append(cost * sum(p.cached_tokens for p in passes) / work if work else 0.0)
    return (1 - min(saved[1], 0.99)) / (1 - min(saved[0], 0.99)) - 1


def _known_by_cache(own: list[Pass], other: list[Pass]) -> str:
    shares = _cached_shares(own, other)
    return f"{shares[0]:.1%} of the candidate's prompt tokens were in the cache, {shares[1]:.1%} of the control's"


def _cached_shares(own: list[Pass], other: list[Pass]) -> list[float]:
    return [
        sum(p.cached_tokens for p in passes) / max(1, sum(p.prompt_tokens for p in passes)) for passes in (own, other)
    ]


def _mean(passes: list[Pass], name: str) -> float:
    values = [float(getattr(p, name)) for p in passes]
    return math.fsum(values) / len(values)


def _ratio(one: float, other: float) -> float | None:
    return one / other - 1 if one > 0 and other > 0 else None
