"""Four pictures of a trial, as PNG files in a folder.

In: a `Trial` and its `Verdict`. Out: gain.png, throughput.png, agreement.png and step_time.png, each left out where
there is nothing to draw. Knows nothing of trackers or pages. An arm has one colour and one mark in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orderproof.job.files import atomic_file
from orderproof.measure.agreement_figure import draw_agreement
from orderproof.measure.trial_store import Manifest, Pass, Trial
from orderproof.measure.verdict import Verdict
from orderproof.outputs.passes import CANDIDATE, CONTROL
from orderproof.runs.style import BAND, COLOURS, DPI, FAINT, INK, MARKS, STYLE, new_figure, title_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 100  # of a resampled step-time curve
MANY_PASSES = 60  # beyond which not every block's number fits
METRIC_LABELS = {"throughput_req_s": "requests per second", "throughput_tok_s": "generated tokens per second"}


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

    with matplotlib.rc_context(STYLE):
        drawn = {
            "gain": _gain(trial, verdict) if verdict else None,
            "throughput": _throughput(trial),
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


# --- throughput, pass by pass ---------------------------------------------------------------------------------------


def _throughput(trial: Trial) -> Figure | None:
    passes = [timed for timed in trial.passes if timed.block]
    if not passes:
        return None
    figure, axes = new_figure(3.7)
    metric = trial.manifest.rule.metric
    low, high = _range_of_counted(trial)
    lost_ids = {timed.pass_id for timed in trial.discarded()}
    ticks = []
    for number, ((block, _), slots) in enumerate(_slots(passes)):
        left, right = slots[0][0] - 0.75, slots[-1][0] + 0.75
        if number % 2 == 0:
            axes.axvspan(left, right, color=BAND, lw=0, zorder=0)
        lost = slots[0][1].pass_id in lost_ids
        rates = [min(max(getattr(timed, metric), low), high) for _, timed in slots]
        axes.plot([x for x, _ in slots], rates, color="#C3C8CF", lw=1, ls=":" if lost else "-", zorder=1)
        for (x, timed), rate in zip(slots, rates, strict=True):
            _mark(axes, x, rate, getattr(timed, metric), timed, lost)
        if lost or len(passes) <= MANY_PASSES or block % 5 == 0:
            ticks.append(((left + right) / 2, f"{block}\nlost" if lost else f"{block}"))
    axes.set_xticks([x for x, _ in ticks], [label for _, label in ticks])
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    axes.set_xlim(-0.75, right)
    axes.set_xlabel("block")
    axes.set_ylabel(METRIC_LABELS.get(metric, metric))
    title_above(
        axes, _faster_in(trial), "Each mark is a pass, left to right as they ran: a coin decided which arm came first"
    )
    _legend_of_arms(axes, trial.manifest, bool(lost_ids))
    return figure


def _range_of_counted(trial: Trial) -> tuple[float, float]:
    """Rates to show: those of passes that count, widened; a discarded pass beyond them is set at the edge."""
    metric = trial.manifest.rule.metric
    counted = [timed for block in trial.blocks() for timed in block.passes.values()]
    rates = [getattr(timed, metric) for timed in counted or trial.passes]
    low, high = min(rates), max(rates)
    spread = high - low or 0.1 * high or 1.0
    return low - 0.15 * spread, high + 0.15 * spread


def _slots(passes: Sequence[Pass]) -> Iterator[tuple[tuple[int, int], list[tuple[float, Pass]]]]:
    """Places on the time axis: one per pass, a gap after each attempt at a block."""
    x = 0.0
    for attempt, group in groupby(passes, key=lambda timed: (timed.block, timed.attempt)):
        slots = []
        for timed in group:
            slots.append((x, timed))
            x += 1
        x += 0.5
        yield attempt, slots


def _mark(axes: Axes, x: float, y: float, rate: float, timed: Pass, lost: bool) -> None:
    colour = COLOURS[timed.arm]
    axes.plot(x, y, MARKS[timed.arm], ms=6.5, mfc="white" if lost else colour, mec=colour, mew=1.4, zorder=3)
    if timed.invalid:
        axes.plot(x, y, "x", color=INK, ms=11, mew=1.2, zorder=4)
    if y != rate:  # beyond the axis, which is scaled for the passes that count
        below = rate < y
        axes.annotate(
            f"{'↓' if below else '↑'} {rate:.4g}", (x, y), (8, 0), textcoords="offset points", va="center", fontsize=9
        )


def _faster_in(trial: Trial) -> str:
    metric, blocks = trial.manifest.rule.metric, trial.blocks()
    if not blocks:
        return "No block counts"
    faster = sum(getattr(b.passes[CANDIDATE], metric) > getattr(b.passes[CONTROL], metric) for b in blocks)
    return f"The candidate was faster than the control in {faster} of {len(blocks)} block" + "s" * (len(blocks) > 1)


def _legend_of_arms(axes: Axes, plan: Manifest, discards: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], ls="", marker=MARKS[arm], color=COLOURS[arm], ms=7, label=arm_label(plan, arm))
        for arm in plan.arms
    ]
    if discards:
        handles += [
            Line2D([], [], ls="", marker="o", mfc="white", mec=FAINT, ms=7, label="discarded"),
            Line2D([], [], ls="", marker="x", color=INK, ms=8, label="invalid"),
        ]
    axes.figure.legend(
        handles=handles, loc="outside lower left", ncols=len(handles), handletextpad=0.2, columnspacing=1.6
    )


# --- gain -----------------------------------------------------------------------------------------------------------


def _gain(trial: Trial, verdict: Verdict) -> Figure | None:
    if verdict.gain is None or verdict.gain_low is None or verdict.gain_high is None:
        return None
    gains = 100 * np.expm1(verdict.log_ratios)
    low, gain, high = (100 * x for x in (verdict.gain_low, verdict.gain, verdict.gain_high))
    count = len(gains)
    figure, axes = new_figure(2.4 + min(0.2 * count, 3.2))
    rows = np.arange(count, 0, -1)
    foot = max(1.2, count / 12)  # height of the interval's own strip, in rows
    axes.axhspan(-foot, 0.2, color=BAND, lw=0, zorder=0)
    axes.plot(gains, rows, "o", color="#4B5563", ms=6, zorder=3)
    axes.plot([low, high], [-foot / 2] * 2, color=INK, lw=3, solid_capstyle="butt", zorder=3)
    axes.plot(gain, -foot / 2, "D", color=INK, ms=8, zorder=4)
    _reference_lines(axes, trial, verdict)
    every = 1 if count <= 16 else 5
    named = [(y, b.number) for y, b in zip(rows, trial.blocks(), strict=True) if b.number % every == 0]
    axes.set_yticks([*(float(y) for y, _ in named), -foot / 2], [*(f"block {n}" for _, n in named), "mean, interval"])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-foot, count + 0.7)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g} %" if value else "0")
    axes.set_xlabel("candidate's gain over the control")
    title_above(axes, f"Gain {gain:+.1f} %, between {low:+.1f} and {high:+.1f} %", _against(verdict, trial))
    return figure


def _reference_lines(axes: Axes, trial: Trial, verdict: Verdict) -> None:
    rule = trial.manifest.rule
    lines = [
        (0.0, "no gain", "-", "#9AA1AB"),
        (rule.margin, "margin", "--", INK),
        (rule.min_effect, "minimum effect", ":", INK),
    ]
    if verdict.detectable_gain is not None and np.isfinite(verdict.detectable_gain):
        lines.append((round(verdict.detectable_gain, 3), "detectable", "-.", "#009E73"))
    handles = []
    for value, name, dashes, colour in lines:
        label = name if value == 0 else f"{name} {100 * value:.3g} %"
        handles.append(axes.axvline(100 * value, color=colour, ls=dashes, lw=1.3, zorder=1, label=label))
    axes.figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), columnspacing=1.6)


def _against(verdict: Verdict, trial: Trial) -> str:
    rule = trial.manifest.rule
    assert verdict.gain_low is not None
    if verdict.gain_low > rule.margin:
        return f"The whole interval lies above the margin of {100 * rule.margin:g} %"
    if verdict.gain_upper95 is not None and verdict.gain_upper95 < rule.min_effect:
        return f"Surely below the minimum effect of {100 * rule.min_effect:g} %"
    return f"The interval reaches below the margin of {100 * rule.margin:g} %, so a gain is not shown"


# --- step time over a pass ------------------------------------------------------------------------------------------


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
    axes.set_xlabel("share of the pass's steps, %")
    axes.set_ylabel("time of a step, ms")
    said = ", ".join(f"{np.median(curve):.1f} ms {arm}" for arm, curve in curves.items())
    title_above(axes, f"Time of a step: {said}", "Median over the passes that count, with their middle half")
    axes.figure.legend(loc="outside lower left", ncols=len(curves), columnspacing=1.6)
    return figure


def _resampled(series: Sequence[float]) -> NDArray[np.float64]:
    """A pass's series on a common axis of 0 to 100 % of its steps."""
    return np.interp(np.linspace(0, 1, POINTS), np.linspace(0, 1, len(series)), series)
