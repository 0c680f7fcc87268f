"""What MLflow shall hold of a trial: one record for the trial, one for each of its passes.

In: a `Trial`, its `Verdict`, the job's price. Out: `RunRecord`s, plain values. Knows nothing of MLflow's client or of
servers (this package's __init__ and beside.py send the records), nor of engines, Prefect or DVC.

Every pass carries the same metrics, and its arm also as a parameter, so that MLflow's comparison page of a trial's
passes answers the question by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from orderproof.job.hashing import canonical_json
from orderproof.measure.evaluate import pass_outputs
from orderproof.measure.trial_store import Pass, Trial
from orderproof.measure.verdict import Verdict
from orderproof.outputs.passes import CONTROL, SHUFFLED, disagreement_with_controls

TRIAL_TAG, PASS_TAG = "orderproof.trial", "orderproof.pass"
ORIGIN = {"prefect_run", "dvc_revision"}  # tags that keep their first value, however often a trial is sent
LONGEST_PARAMETER_CHARS = 500  # MLflow cuts silently at 6,000 and shows far less


@dataclass(frozen=True)
class RunRecord:
    """What one MLflow run holds. `pass_id` is empty for the trial's own, the parent."""

    pass_id: str
    name: str
    start_ms: int  # since the epoch
    end_ms: int
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)  # equal parts of the pass, at most 100


def trial_record(trial: Trial, verdict: Verdict | None, prefect_run: str | None, dvc_revision: str | None) -> RunRecord:
    """The parent run: what was asked, and what came out. `verdict` is None while blocks are still to come."""
    plan = trial.manifest
    created_ms = epoch_ms(plan.created_utc)
    tags = {
        **_common_tags(trial),
        "verdict": verdict.verdict if verdict else "unfinished",
        "attempt": str(plan.attempt),
        "prefect_run": prefect_run,
        "dvc_revision": dvc_revision,
        "mlflow.note.content": verdict.reason if verdict else "Blocks are still to come.",
    }
    return RunRecord(
        pass_id="",
        name=f"placebo {plan.trial}" if plan.placebo else plan.trial,
        start_ms=created_ms,
        end_ms=max((_end_ms(timed) for timed in trial.passes), default=created_ms),
        tags=_known(tags),
        params=_trial_parameters(trial),
        metrics=_trial_metrics(trial, verdict),
    )


def _trial_parameters(trial: Trial) -> dict[str, str]:
    plan = trial.manifest
    values = {
        "candidate": plan.candidate.method,
        "candidate.parameters": canonical_json(plan.candidate.parameters),
        "control": plan.control.method if plan.control else "shuffled, a fresh seed per block",
        "engine.args": canonical_json(plan.engine.get("args", {})),
        "max_num_seqs": plan.engine.get("max_num_seqs"),
        "replicas": plan.engine.get("replicas", 1),
        "mode": plan.engine.get("mode"),
        "prompts": plan.prompts_measured,
        "sampling": canonical_json(plan.sampling),
        **{f"rule.{key}": value for key, value in plan.rule.model_dump(mode="json").items()},
    }
    return {key: shortened(str(value), "manifest.json") for key, value in values.items()}


def _trial_metrics(trial: Trial, verdict: Verdict | None) -> dict[str, float]:
    metrics: dict[str, float | None] = {"blocks": len(trial.blocks())}
    if foretold := trial.manifest.foretold:
        metrics |= {f"foretold_{key}": value for key, value in foretold}
    if verdict:
        metrics |= {key: getattr(verdict, key) for key in ("gain", "gain_low", "gain_high", "detectable_gain")}
    if verdict and verdict.outputs:
        metrics |= {"output_diff_rate": verdict.outputs.d_ab, "output_diff_floor": verdict.outputs.d_aa}
        if verdict.outputs.scores:
            metrics["score_difference"] = verdict.outputs.scores.difference
    return _known(metrics)


def pass_records(
    trial: Trial, price_per_hour: float, parent_id: str, experts: Mapping[str, float] | None = None
) -> Iterator[RunRecord]:
    """The child runs, in the order in which the passes ran; `experts`: of each pass, read per layer and step."""
    discarded = {timed.pass_id for timed in trial.discarded()}
    moved = _output_diff_rates(trial)
    for timed in trial.passes:
        state = "discarded" if timed.pass_id in discarded else "counted" if timed.block else "warm-up"
        yield RunRecord(
            pass_id=timed.pass_id,
            name=_pass_name(timed, state),
            start_ms=epoch_ms(timed.started_utc),
            end_ms=_end_ms(timed),
            tags={**_known(_common_tags(trial)), **_pass_tags(timed, state), "mlflow.parentRunId": parent_id},
            # Also parameters: MLflow's box plot and parallel coordinates group by these, never by tags.
            params={"arm": timed.arm, "block": f"{timed.block:02d}", "state": state},
            metrics=_known(
                {
                    **_pass_metrics(timed, price_per_hour),
                    "output_diff_rate": moved.get(timed.pass_id),
                    "experts_per_step": (experts or {}).get(timed.pass_id),
                },
            ),
            series={"step_time_ms": timed.step_ms_series, "sequences_running": timed.running_series},
        )


def _pass_name(timed: Pass, state: str) -> str:
    repeat = f" repeat {timed.attempt}" if timed.attempt else ""
    return f"b{timed.block:02d} {timed.arm}{repeat}" + ("" if state == "counted" else f" ({state})")


def _pass_tags(timed: Pass, state: str) -> dict[str, str]:
    return {
        PASS_TAG: timed.pass_id,
        "arm": timed.arm,
        "block": str(timed.block),
        "turn": str(timed.turn),
        "seed": "none" if timed.seed is None else str(timed.seed),
        "order_sha256": timed.order_sha256,
        "state": state,
        "valid": "; ".join(timed.invalid) or "yes",
        "steal": f"{timed.steal:.4f}",
        "probe_before_s": f"{timed.probe_before_s:.4f}",
        "probe_after_s": f"{timed.probe_after_s:.4f}",
    }


def _pass_metrics(timed: Pass, price_per_hour: float) -> dict[str, float | None]:
    priced = price_per_hour > 0 and timed.requests > 0  # without a price no cost: zero would say that it is free
    return {
        "throughput_req_s": timed.throughput_req_s,
        "throughput_tok_s": timed.throughput_tok_s,
        "wall_s": timed.wall_s,
        "time_per_batch_ms": timed.time_per_batch_ms,
        "cost_per_1k_requests": price_per_hour * timed.wall_s / 3600 / timed.requests * 1000 if priced else None,
    }


def _common_tags(trial: Trial) -> dict[str, str | None]:
    plan = trial.manifest
    return {
        TRIAL_TAG: plan.trial,
        "trial": plan.trial,
        "placebo": "yes" if plan.placebo else "no",
        "dataset_md5": plan.dataset_md5,
        "model": plan.model.get("path"),
        "model_fingerprint": plan.model.get("fingerprint"),
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(plan.versions.items())),
    }


def _output_diff_rates(trial: Trial) -> dict[str, float]:
    """Per counted pass, its mean disagreement with the other shuffled passes that count, as the parent's rate is.

    Those are the control's or, where the control is the job's current order, the third arm's.
    """
    blocks = trial.blocks()
    if not blocks:
        return {}
    passes = pass_outputs(trial, blocks)[0]
    if SHUFFLED in trial.manifest.arms:
        as_floor = {SHUFFLED: CONTROL, CONTROL: "current"}
        passes = [replace(one, arm=as_floor.get(one.arm, one.arm)) for one in passes]
    return disagreement_with_controls(passes)


def shortened(value: str, artifact: str) -> str:
    """A parameter's value, or where the whole of a long one is."""
    return value if len(value) <= LONGEST_PARAMETER_CHARS else f"long: see the artifact {artifact}"


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def epoch_ms(utc: str) -> int:
    """ISO 8601 → milliseconds since the epoch, as MLflow has times."""
    return int(datetime.fromisoformat(utc).timestamp() * 1000)


def _end_ms(timed: Pass) -> int:
    return epoch_ms(timed.started_utc) + round(1000 * timed.wall_s)
