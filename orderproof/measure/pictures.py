"""Four pictures of a trial, as PNG files: gain.png, throughput.png, agreement.png and step_time.png.

Each is left out where there is nothing to draw. An arm has one colour and one mark in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orderproof.job.files import atomic_file
from orderproof.measure.agreement_picture import draw_agreement
from orderproof.measure.pairs_picture import draw_pairs
from orderproof.measure.throughput_picture import draw_throughput
from orderproof.measure.trial_records import Manifest
from orderproof.measure.trial_store import Trial
from orderproof.measure.verdict import Verdict
from orderproof.outputs.passes import CANDIDATE, CONTROL
from orderproof.runs.style import COLOURS, DPI, STYLE, new_figure, title_above

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 100  # of a resampled step-time curve


def draw(trial: Trial, verdict: Verdict | None, folder: Path) -> list[Path]:
    """Write what the trial allows to draw as PNG files into `folder`, usually the trial's own; their paths."""
    drawn = pictures(trial, verdict)
    for name, figure in drawn.items():
        with atomic_file(folder / f"{name}.png") as sink:
            figure.savefig(sink, format="png", dpi=DPI, facecolor="white")
    return [folder / f"{name}.png" for name in drawn]


def pictures(trial: Trial, verdict: Verdict | None) -> dict[str, Figure]:
    """The pictures by name, in the order in which a reader wants them.

    Args:
        trial: with any number of passes, none included.
        verdict: None, or one without figures, leaves the gain's picture out.
    """
    import matplotlib

    plan = trial.manifest
    with matplotlib.rc_context(STYLE):
        drawn = {
            "gain": draw_pairs(trial, verdict) if verdict else None,
            "throughput": draw_throughput(trial, {arm: arm_label(plan, arm) for arm in plan.arms}),
            "agreement": draw_agreement(trial),
            "step_time": _step_time(trial),
        }
    return {name: figure for name, figure in drawn.items() if figure}


def arm_label(plan: Manifest, arm: str) -> str:
    """An arm with the order that it sends: `control: shuffled`, `candidate: cluster order`."""
    if arm == CANDIDATE:
        return f"{arm}: {plan.candidate.method} order"
    if arm == CONTROL:
        return f"{arm}: {plan.control.method} order" if plan.control else f"{arm}: shuffled"
    return arm


def _step_time(trial: Trial) -> Figure | None:
    curves = {
        arm: np.array(
            [_resampled(b.passes[arm].step_ms_series) for b in trial.blocks() if b.passes[arm].step_ms_series]
        )
        for arm in trial.manifest.arms
    }
    curves = {arm: curve for arm, curve in curves.items() if len(curve)}
    if not curves:
        return None
    figure, axes = new_figure(3.2)
    share = np.linspace(0, 100, POINTS)
    for arm, curve in curves.items():
        low, middle, high = np.percentile(curve, [25, 50, 75], axis=0)
        axes.fill_between(share, low, high, color=COLOURS[arm], alpha=0.15, lw=0)
        axes.plot(share, middle, color=COLOURS[arm], lw=1.8, label=arm_label(trial.manifest, arm))
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of an arm's steps in a block, %")
    axes.set_ylabel("time of a step, ms")
    medians = ", ".join(f"{np.median(curve):.1f} ms {arm}" for arm, curve in curves.items())
    title_above(axes, f"Time of a step: {medians}", "Median over complete blocks, with their middle half")
    axes.figure.legend(loc="outside lower left", ncols=len(curves), columnspacing=1.6)
    return figure


def _resampled(series: Sequence[float]) -> NDArray[np.float64]:
    """A series on a common axis of 0 to 100 % of its steps."""
    return np.interp(np.linspace(0, 1, POINTS), np.linspace(0, 1, len(series)), series)
