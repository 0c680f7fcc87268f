"""The verdict page: one HTML file that carries everything a sceptic asks for, pictures included.

In: a job, a trial, its verdict and the figures in its folder. Out: page.html, without scripts or links to elsewhere.
Knows nothing of trackers and decides nothing. Works for any verdict, also where few passes were made or none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orderproof.job.spec import Job
from orderproof.measure.breakdown import gain_in_slow_and_fast_pairs, gains_by_group
from orderproof.measure.evaluate import slice_table
from orderproof.measure.parts import gain_parts
from orderproof.measure.pictures import arm_label
from orderproof.measure.trial_records import Manifest, Pass
from orderproof.measure.trial_store import Trial
from orderproof.measure.verdict import Verdict
from orderproof.outputs.divergence import DifferentOutputs, most_different
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED
from orderproof.runs.page import data_uri, render
from orderproof.runs.page_filters import percent
from orderproof.runs.style import COLOURS

PICTURES = {
    "gain": "Gain of every pair of slices by cluster, its interval, margin, minimum effect and detectable gain",
    "throughput": "Throughput of every slice of both arms over the trial's time",
    "agreement": "Share of equal outputs for every pair of passes, ordered by arm",
    "step_time": "Median time of a step over a pass, per arm",
}


@dataclass(frozen=True)
class ArmFigures:
    """What the passes of one arm that count came to. Rates are geometric means, the rest means over passes."""

    arm: str
    label: str
    colour: str
    passes: int
    throughput_req_s: float
    throughput_tok_s: float
    wall_s: float
    time_per_batch_ms: float
    time_per_batch_p95_ms: float
    running: float  # sequences per step
    prompt_tokens: float  # per request
    output_tokens: float  # per request
    prefix_hit_rate: float | None  # None: there is no cache
    preempted: float | None  # None: the arms share runs
    admission_inversions: float


@dataclass(frozen=True)
class Savings:
    """What the gain is worth for one run of the whole job; low and high from the gain's interval."""

    control_s: float  # generating all prompts at the control's rate
    candidate_s: float
    saved_s: float
    saved_low_s: float
    saved_high_s: float
    price_per_s: float

    def money(self, seconds: float) -> float:
        return seconds * self.price_per_s


def verdict_page(job: Job, trial: Trial, verdict: Verdict | None, folder: Path) -> str:
    """The verdict page as HTML, with the pictures in `folder`.

    Args:
        verdict: None while blocks are still missing.
    """
    return render("verdict.html.j2", _facts(job, trial, verdict, folder))


def _facts(job: Job, trial: Trial, verdict: Verdict | None, folder: Path) -> dict[str, Any]:
    """Everything that the template names."""
    plan = trial.manifest
    pictures = {name: folder / f"{name}.png" for name in PICTURES}
    table = slice_table(trial) if len(trial.blocks()) > 1 else None
    return {
        "job": job,
        "plan": plan,
        "verdict": verdict,
        "outputs": verdict.outputs if verdict else None,
        "headline": headline(plan, verdict),
        "arms": arm_figures(trial),
        "savings": savings(job, trial, verdict),
        "pictures": {name: data_uri(path) for name, path in pictures.items() if path.exists()},
        "alt": PICTURES,
        "blocks": len(trial.blocks()),
        "repeated": trial.repeated(),
        "throttled_pairs": sum(timed.throttled_pairs for timed in trial.passes),
        "passes": trial.passes,
        "clusters": gains_by_group(table, plan.slices.labels) if table else [],
        "slow_and_fast": gain_in_slow_and_fast_pairs(table) if table else None,
        "parts": gain_parts(trial),
        "different": _most_different(trial) if job.reporting.log_text else (),
        "not_measured": not_measured(trial, verdict),
        "floor": SHUFFLED if SHUFFLED in plan.arms else CONTROL,
        "colours": COLOURS,
    }


def headline(plan: Manifest, verdict: Verdict | None) -> str:
    """The verdict in one sentence."""
    order = f"{plan.candidate.method} order"
    gain = _with_interval(verdict)
    if verdict is None:
        return f"Not finished: a verdict on {order} needs {plan.rule.looks[0]} blocks or more."
    return {
        "promote": f"Send the prompts in {order}: it gains {gain}.",
        "keep": f"Keep the current order: {order} gains {gain}.",  # the reason stands below
        "inconclusive": f"Not decided: {order} seems to gain {gain}, but that is not enough evidence to promote it.",
        "refused": f"Refused before it cost anything: {order} cannot help here.",
        "invalid": "Invalid: these passes cannot carry a verdict.",
    }[verdict.verdict]


def _with_interval(verdict: Verdict | None) -> str:
    if verdict is None or verdict.gain is None or verdict.gain_low is None or verdict.gain_high is None:
        return ""
    low, high = percent(verdict.gain_low, signed=True), percent(verdict.gain_high, signed=True)
    return f"{percent(verdict.gain)} ({low} to {high})"


def arm_figures(trial: Trial) -> list[ArmFigures]:
    """Per arm, in the manifest's order; empty where no block counts."""
    blocks = trial.blocks()
    arms = trial.manifest.arms if blocks else ()
    return [_figures_of(trial.manifest, arm, [block.passes[arm] for block in blocks]) for arm in arms]


def _figures_of(plan: Manifest, arm: str, passes: Sequence[Pass]) -> ArmFigures:
    def mean(name: str) -> float:
        return float(np.mean([getattr(timed, name) for timed in passes]))

    requests, prompt_tokens = mean("requests"), mean("prompt_tokens")
    return ArmFigures(
        arm=arm,
        label=arm_label(plan, arm),
        colour=COLOURS[arm],
        passes=len(passes),
        throughput_req_s=_geometric_mean([timed.throughput_req_s for timed in passes]),
        throughput_tok_s=_geometric_mean([timed.throughput_tok_s for timed in passes]),
        wall_s=mean("wall_s"),
        time_per_batch_ms=mean("time_per_batch_ms"),
        time_per_batch_p95_ms=mean("time_per_batch_p95_ms"),
        running=mean("running_mean"),
        prompt_tokens=prompt_tokens / max(requests, 1),
        output_tokens=mean("output_tokens") / max(requests, 1),
        prefix_hit_rate=mean("cached_tokens") / prompt_tokens if plan.slices.salted and prompt_tokens else None,
        preempted=None if any(timed.preempted is None for timed in passes) else mean("preempted"),
        admission_inversions=mean("admission_inversions"),
    )


def savings(job: Job, trial: Trial, verdict: Verdict | None) -> Savings | None:
    """The gain applied to all prompts of the job; None without a gain. Start and loading of the engine are left out."""
    blocks = trial.blocks()
    if verdict is None or verdict.gain is None or verdict.gain_low is None or verdict.gain_high is None or not blocks:
        return None
    rate = _geometric_mean([block.passes[CONTROL].throughput_req_s for block in blocks])
    control_s = trial.manifest.prompts_total / rate
    low, saved, high = (
        control_s * (1 - 1 / (1 + gain)) for gain in (verdict.gain_low, verdict.gain, verdict.gain_high)
    )
    return Savings(control_s, control_s - saved, saved, low, high, job.reporting.price_per_hour / 3600)


def not_measured(trial: Trial, verdict: Verdict | None) -> list[str]:
    """What a reader might take this trial to show and it does not."""
    plan = trial.manifest
    if not trial.slices:
        return ["Anything: no slice was run."]
    gaps = []
    if plan.prompts_measured < plan.prompts_total:
        left = plan.prompts_total - plan.prompts_measured
        gaps.append(
            f"{left:,} of the job's {plan.prompts_total:,} prompts: a sample was measured, in runs of the sorted order."
        )
    if plan.sampling.get("ignore_eos"):
        gaps.append("Natural output lengths: every output was cut at the same number of tokens.")
    if plan.control is None:
        gaps.append("The current order itself: fresh shuffles stand for it as the control.")
    if not (verdict and verdict.outputs and verdict.outputs.scores):
        gaps.append("Whether changed outputs are better or worse: nothing was scored against references.")
    if not any(timed.accelerator for timed in trial.passes):
        gaps.append("Clocks and temperatures: no accelerator reported them.")
    gaps.append("How many experts a step touched: the routing was not recorded.")
    gaps.append("Start and loading of the engine, which every order pays alike.")
    gaps.append("Other models, batch sizes, engine settings and machines than those named below.")
    return gaps


def _most_different(trial: Trial) -> tuple[DifferentOutputs, ...]:
    """The least alike outputs of the first block that counts. They are the prompts' owners' text: only on request."""
    for block in trial.blocks()[:1]:
        columns = ["prompt_id", "sample", "token_ids", "text"]
        control, candidate = (trial.tokens(block.passes[arm].pass_id, columns) for arm in (CONTROL, CANDIDATE))
        return most_different(control, candidate, sorted(set(control["prompt_id"].to_pylist())))
    return ()


def _geometric_mean(rates: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(rates))))
