"""The verdict page: one HTML file that carries everything a sceptic asks for, pictures included.

In: a job, a trial, its verdict and the figures in its folder. Out: verdict.html, without scripts or links to elsewhere.
Knows nothing of trackers and decides nothing. Works for any verdict, also where few passes were made or none.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orderproof.job.files import write_atomically
from orderproof.job.spec import Job
from orderproof.measure.figures import arm_label
from orderproof.measure.trial_store import Manifest, Pass, Trial
from orderproof.measure.verdict import Verdict
from orderproof.outputs.divergence import DifferentOutputs, most_different
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED
from orderproof.runs.style import COLOURS

PICTURES = {
    "gain": "Gain of every block with the interval of the mean, the margin, the minimum and the detectable effect",
    "throughput": "Throughput of every pass by block and arm, in the order in which they ran, discards included",
    "agreement": "Share of equal outputs for every pair of passes, ordered by arm",
    "step_time": "Median time of a step over a pass, per arm",
}
NO_BREAK = "\u00a0"  # between a number and its unit


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
    prefix_hit_rate: float | None  # None: the cache was never asked
    preempted: float
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


def write_page(job: Job, trial: Trial, verdict: Verdict | None, folder: Path) -> Path:
    """Write folder/verdict.html with the pictures that lie in `folder`, and return its path.

    Args:
        verdict: None while blocks are still to come.
    """
    page = folder / "verdict.html"
    write_atomically(page, render("verdict.html.j2", _facts(job, trial, verdict, folder)))
    return page


def render(template: str, facts: Mapping[str, Any]) -> str:
    """A page of this folder's templates, in the style that they share; every value is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("orderproof.runs", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    written = (percent, points, number, duration, limit, amount)
    pages.filters |= {function.__name__: function for function in written} | {"text": _text}
    return pages.get_template(template).render(facts)


def _facts(job: Job, trial: Trial, verdict: Verdict | None, folder: Path) -> dict[str, Any]:
    """Everything that the template names."""
    plan = trial.manifest
    pictures = {name: folder / f"{name}.png" for name in PICTURES}
    discarded = {timed.pass_id for timed in trial.discarded()}
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
        "discards": _discards(trial),
        "passes": [(timed, _state(timed, discarded)) for timed in trial.passes],
        "different": _most_different(trial) if job.reporting.log_text else (),
        "not_measured": not_measured(trial, verdict),
        "floor": SHUFFLED if SHUFFLED in plan.arms else CONTROL,
        "colours": COLOURS,
    }


def headline(plan: Manifest, verdict: Verdict | None) -> str:
    """The verdict in one sentence."""
    order = f"{plan.candidate.method} order"
    gain = _with_interval(verdict)
    small = verdict is not None and verdict.gain_upper95 is not None and verdict.gain_upper95 < plan.rule.min_effect
    if verdict is None:
        return f"Not finished: a verdict on {order} needs {plan.rule.looks[0]} blocks or more."
    return {
        "promote": f"Send the prompts in {order}: it gains {gain}.",
        "keep": f"Keep the current order: {order} gains {gain}, "
        + ("which does not carry a change." if small else "but moves the outputs too far."),
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

    requests, queries = mean("requests"), mean("prefix_queries")
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
        prompt_tokens=mean("prompt_tokens") / max(requests, 1),
        output_tokens=mean("output_tokens") / max(requests, 1),
        prefix_hit_rate=mean("prefix_hits") / queries if queries else None,
        preempted=mean("preempted"),
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
    if not trial.passes:
        return ["Anything: no pass was made."]
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


def _discards(trial: Trial) -> list[tuple[int, int, list[Pass]]]:
    """(block, attempt, passes) of every attempt that does not count."""
    lost = {timed.pass_id for timed in trial.discarded()}
    attempts = [(number, attempt) for number, tries in trial.block_attempts().items() for attempt in tries]
    return [(number, passes[0].attempt, passes) for number, passes in attempts if passes[0].pass_id in lost]


def _state(timed: Pass, discarded: set[str]) -> str:
    if timed.block == 0:
        return "warm-up"
    return "discarded" if timed.pass_id in discarded else "counted"


def _most_different(trial: Trial) -> tuple[DifferentOutputs, ...]:
    """The least alike outputs of the first block that counts. They are the prompts' owners' text: only on request."""
    for block in trial.blocks()[:1]:
        columns = ["prompt_id", "token_ids", "text"]
        control, candidate = (trial.tokens(block.passes[arm].pass_id, columns) for arm in (CONTROL, CANDIDATE))
        return most_different(control, candidate, sorted(control["prompt_id"].to_pylist()))
    return ()


def data_uri(picture: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()


def _geometric_mean(rates: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(rates))))


def percent(fraction: float | None, digits: int = 1, signed: bool = False) -> str:
    """0.063 → `6.3 %`."""
    return "–" if fraction is None else f"{100 * fraction:{'+' if signed else ''}z.{digits}f}{NO_BREAK}%"


def points(fraction: float | None, signed: bool = True) -> str:
    """0.008 → `+0.8 points`."""
    return "–" if fraction is None else f"{100 * fraction:{'+' if signed else ''}z.1f}{NO_BREAK}points"


def number(value: float | None) -> str:
    """About four significant digits without an exponent: 7.76, 12.34, 1,234."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, 2 - magnitude if magnitude < 0 else 3 - max(magnitude, 1))}f}"


def duration(seconds: float) -> str:
    """3.2 s, 12 min, 2 h 14 min: two units at most. A negative one is time lost."""
    sign, seconds = ("−" if seconds < 0 else ""), abs(seconds)
    if seconds < 120:
        return f"{sign}{seconds:.1f}{NO_BREAK}s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{sign}{minutes}{NO_BREAK}min"
    return f"{sign}{minutes // 60:,}{NO_BREAK}h {minutes % 60}{NO_BREAK}min"


def limit(fraction: float) -> str:
    """A registered fraction as it was written: 0.01 → `1 %`, 0.0125 → `1.25 %`."""
    return f"{100 * fraction:.6g}{NO_BREAK}%"


def amount(money: float, currency: str) -> str:
    """12.50 USD; below one unit, three significant digits: 0.00314 USD."""
    digits = 2 if abs(money) >= 1 or money == 0 else 2 - math.floor(math.log10(abs(money)))
    return f"{money:,.{digits}f}{NO_BREAK}{currency}"


def _text(value: Any) -> str:
    """A setting as a reader would write it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_text(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
