"""What MLflow holds of a trial: the parent's name and parameters, and one child run for each block and arm.

Each has the same metrics, and its arm also as a parameter, so that MLflow's comparison page answers the question. The
parent's metrics are the figures of the run, which record.py makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from orderproof.job.hashing import canonical_json
from orderproof.job.spec import Job
from orderproof.measure.evaluate import pass_outputs
from orderproof.measure.pass_expert_counts import experts_per_step
from orderproof.measure.trial_records import Pass
from orderproof.measure.trial_store import Trial
from orderproof.outputs.passes import CONTROL, SHUFFLED, disagreement_with_controls
from orderproof.runs.mlflow_run import Child, Tracking, epoch_ms
from orderproof.runs.run import Run
from orderproof.runs.run_store import run_folder

FILES = ("verdict.json", "manifest.json", "slices.jsonl", "passes.jsonl")


def tracking_of(job: Job, run: Run) -> Tracking:
    """What a measurement adds to its MLflow run, from the trial's folder alone."""
    folder = run_folder(job, run.verb, run.id)
    if not (folder / "manifest.json").exists():  # refused before a trial began
        return Tracking(name=_name(run))
    trial = Trial.read(folder)
    manifest = trial.manifest
    return Tracking(
        name=_name(run),
        tags={"trial": manifest.trial, "attempt": str(manifest.attempt), "verdict": run.answer},
        params={
            "candidate": manifest.candidate.method,
            "candidate.parameters": canonical_json(manifest.candidate.parameters),
            "control": manifest.control.method if manifest.control else "shuffled, a fresh seed per block",
            "max_num_seqs": manifest.engine.get("max_num_seqs"),
            "replicas": manifest.engine.get("replicas", 1),
            "mode": manifest.engine.get("mode"),
            "prompts": manifest.prompts_measured,
            **{f"rule.{key}": value for key, value in manifest.rule.model_dump(mode="json").items()},
        },
        children=list(_children(trial, job.reporting.price_per_hour, experts_per_step(job, trial))),
        files=[folder / name for name in FILES],
        text_folder=folder / "tokens",
    )


def _name(run: Run) -> str:
    gain = run.figure("gain")
    worth = "" if gain is None else f" {100 * gain:+z.0f} %"
    aa = "A/A " if run.verb == "aa" else ""
    return f"{aa}{run.answer}{worth} · {run.job} · {run.started_utc[:16].replace('T', ' ')}"


def _children(trial: Trial, price_per_hour: float, experts: Mapping[str, float]) -> Iterator[Child]:
    """One child for each pass, in the order in which they ran; `experts`: of each pass, read per layer and step."""
    complete = {timed.pass_id for block in trial.blocks() for timed in block.passes.values()}
    moved = _output_diff_rates(trial)
    for timed in trial.passes:
        state = "counted" if timed.pass_id in complete else "incomplete block"
        start_ms = epoch_ms(timed.started_utc)
        yield Child(
            key=timed.pass_id,
            name=_pass_name(timed, state),
            start_ms=start_ms,
            end_ms=start_ms + round(1000 * timed.block_s),
            tags=_pass_tags(timed, state),
            # Also parameters: MLflow's box plot and parallel coordinates group by these, never by tags.
            params={"arm": timed.arm, "block": f"{timed.block:02d}", "state": state},
            metrics={
                **_pass_metrics(timed, price_per_hour),
                "output_diff_rate": moved.get(timed.pass_id),
                "experts_per_step": experts.get(timed.pass_id),
            },
            series={"step_time_ms": timed.step_ms_series, "sequences_running": timed.running_series},
        )


def _pass_name(timed: Pass, state: str) -> str:
    repeat = f" run {timed.run + 1}" if timed.run else ""
    return f"b{timed.block:02d} {timed.arm}{repeat}" + ("" if state == "counted" else f" ({state})")


def _pass_tags(timed: Pass, state: str) -> dict[str, str]:
    return {
        "arm": timed.arm,
        "block": str(timed.block),
        "seed": "none" if timed.seed is None else str(timed.seed),
        "order_sha256": timed.order_sha256,
        "state": state,
        "throttled_pairs": str(timed.throttled_pairs),
        "steal": f"{timed.steal:.4f}",
        "probe_s": f"{timed.probe_s:.4f}",
        "load": "unknown" if timed.load is None else f"{timed.load:.2f}",
    }


def _pass_metrics(timed: Pass, price_per_hour: float) -> dict[str, float | None]:
    priced = price_per_hour > 0 and timed.requests > 0  # without a price no cost: zero would mean that it is free
    return {
        "throughput_req_s": timed.throughput_req_s,
        "throughput_tok_s": timed.throughput_tok_s,
        "wall_s": timed.wall_s,
        "time_per_batch_ms": timed.time_per_batch_ms,
        "cost_per_1k_requests": price_per_hour * timed.wall_s / 3600 / timed.requests * 1000 if priced else None,
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
        passes = [replace(outputs, arm=as_floor.get(outputs.arm, outputs.arm)) for outputs in passes]
    return disagreement_with_controls(passes)
