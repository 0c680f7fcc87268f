"""The main picture of a verdict: every pair of slices a dot, by cluster, with the gain and its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from orderproof.measure.breakdown import GroupGain, gains_by_group, pair_gains
from orderproof.measure.estimator import Floats
from orderproof.measure.evaluate import slice_table
from orderproof.measure.trial_store import Trial
from orderproof.measure.verdict import Rule, Verdict
from orderproof.runs.style import BAND, COLOURS, FAINT, INK, new_figure, title_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_IN = 0.34  # height of a cluster's row
SPREAD = 0.3  # of the dots within a row
SHOWN = (2.0, 98.0)  # percentiles of the dots that the axis is scaled for


def draw_pairs(trial: Trial, verdict: Verdict) -> Figure | None:
    """Pairs by cluster; None where there is no interval."""
    if verdict.gain is None or verdict.gain_low is None or verdict.gain_high is None:
        return None
    table = slice_table(trial)
    groups, gains = gains_by_group(table, trial.manifest.slices.labels), 100 * pair_gains(table)
    figure, axes = new_figure(2.3 + ROW_IN * len(groups))
    low, gain, high = 100 * verdict.gain_low, 100 * verdict.gain, 100 * verdict.gain_high
    limits = _limits(gains, low, high)
    for row, group in enumerate(groups):
        _draw_group(axes, group, gains[:, list(group.strata)], row, limits)
    foot = len(groups) + 0.1
    axes.axhspan(foot - 0.5, foot + 0.6, color=BAND, lw=0, zorder=0)
    axes.plot(
        [max(low, limits[0]), min(high, limits[1])], [foot, foot], color=INK, lw=4, solid_capstyle="butt", zorder=4
    )
    axes.plot(gain, foot, "D", color=INK, ms=9, zorder=5)
    _reference_lines(axes, trial.manifest.rule, verdict, limits[1])
    axes.set_yticks([*range(len(groups)), foot], [*(group.name for group in groups), "all pairs"])
    axes.get_yticklabels()[-1].set_fontweight("bold")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(foot + 0.6, -0.6)
    axes.set_xlim(*limits)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g} %" if value else "0")
    axes.set_xlabel("candidate's gain over the control")
    title = f"Gain {gain:+.1f} % ({low:+.1f} to {high:+.1f} %){_against(verdict, trial.manifest.rule)}"
    title_above(axes, title, f"{gains.size} pairs of slices, a dot each, with the 95 % interval of each cluster alone")
    return figure


def _limits(gains: Floats, low: float, high: float) -> tuple[float, float]:
    left, right = np.percentile(gains, SHOWN)
    left, right = min(float(left), low, 0.0), max(float(right), high, 0.0)
    room = 0.06 * (right - left) or 1.0
    return left - room, right + room


def _draw_group(axes: Axes, group: GroupGain, gains: Floats, row: int, limits: tuple[float, float]) -> None:
    heights = row + np.linspace(-SPREAD, SPREAD, gains.size) if gains.size > 1 else np.full(1, float(row))
    dots = gains.ravel()
    inside = (dots >= limits[0]) & (dots <= limits[1])
    axes.plot(dots[inside], heights[inside], "o", color="#4B5563", alpha=0.45, ms=4, mew=0, zorder=2)
    for beyond, edge, mark in ((dots < limits[0], limits[0], "<"), (dots > limits[1], limits[1], ">")):
        axes.plot(
            np.full(beyond.sum(), edge), heights[beyond], mark, color="#4B5563", ms=5, mew=0, zorder=2, clip_on=False
        )
    if group.low is not None and group.high is not None:
        bounds = np.clip([100 * group.low, 100 * group.high], *limits)
        axes.plot(bounds, [row, row], color=COLOURS["candidate"], lw=2.5, solid_capstyle="butt", zorder=3)
    axes.plot(np.clip(100 * group.gain, *limits), row, "s", color=COLOURS["candidate"], ms=6, zorder=4)
    axes.annotate(
        f"{100 * group.gain:+.1f} %",
        (1, row),
        (6, 0),
        ("axes fraction", "data"),
        "offset points",
        va="center",
        fontsize=9,
        color=FAINT,
        annotation_clip=False,
    )


def _reference_lines(axes: Axes, rule: Rule, verdict: Verdict, right: float) -> None:
    lines = [
        (0.0, "no gain", "-", "#9AA1AB"),
        (rule.margin, "margin", "--", INK),
        (rule.min_effect, "minimum effect", ":", INK),
    ]
    detectable = verdict.detectable_gain
    if detectable is not None and 100 * detectable < right:
        lines.append((round(detectable, 3), "detectable", "-.", "#009E73"))
    handles = []
    for value, name, dashes, colour in lines:
        label = name if value == 0 else f"{name} {100 * value:.3g} %"
        handles.append(axes.axvline(100 * value, color=colour, ls=dashes, lw=1.3, zorder=1, label=label))
    axes.figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), columnspacing=1.6)


def _against(verdict: Verdict, rule: Rule) -> str:
    assert verdict.gain_low is not None
    if verdict.gain_low > rule.margin:
        return f": surely above {100 * rule.margin:g} %"
    if verdict.gain_upper is not None and verdict.gain_upper < rule.min_effect:
        return f": surely below {100 * rule.min_effect:g} %"
    return f": not surely above {100 * rule.margin:g} %"
