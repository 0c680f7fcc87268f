"""Four pictures of a trial, as PNG files in a folder.

In: a `Trial` and its `Verdict`. Out: gain.png, throughput.png, agreement.png and step_time.png, each left out where
there is nothing to draw. Knows nothing of trackers or pages. An arm has one colour and one mark in all of them; the
colours (from Okabe and Ito's palette) stay apart for colour-blind readers, the marks also in print.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orderproof.tasks.evidence import CANDIDATE, CONTROL, SHUFFLED, Manifest, Pass, Trial
from orderproof.tasks.files import atomic_file
from orderproof.tasks.judgement import pass_outputs
from orderproof.tasks.outputs import agreement_matrix
from orderproof.tasks.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {CONTROL: "#0072B2", CANDIDATE: "#D55E00", SHUFFLED: "#6F7680"}
MARKS = {CONTROL: "o", CANDIDATE: "s", SHUFFLED: "^"}
INK, FAINT, BAND = "#1B1F24", "#6B7280", "#F3F4F6"
WIDTH_IN, DPI = 8.0, 160
POINTS = 100  # of a resampled step-time curve
MANY_PASSES = 60  # beyond which not every block's number fits
STYLE: Any = {  # matplotlib types it as a mapping of 300 literal keys
    "axes.edgecolor": "#9AA1AB",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 26,
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "font.size": 10,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
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
            "agreement": _agreement(trial),
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


def _new_figure(height_in: float, place: tuple[float, float, float, float] | None = None) -> tuple[Figure, Axes]:
    """A figure of the page's width; `place` (left, bottom, width, height, as shares) instead of a computed layout."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout=None if place else "constrained")
    return figure, figure.add_axes(place) if place else figure.add_subplot()


def _title(axes: Axes, title: str, below: str) -> None:
    axes.set_title(title)
    axes.annotate(below, (0, 1), (0, 8), "axes fraction", "offset points", color=FAINT, va="bottom", fontsize=9.5)


# --- throughput, pass by pass ---------------------------------------------------------------------------------------


def _throughput(trial: Trial) -> Figure | None:
    passes = [timed for timed in trial.passes if timed.block]
    if not passes:
        return None
    figure, axes = _new_figure(3.7)
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
    _title(
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
    figure, axes = _new_figure(2.4 + min(0.2 * count, 3.2))
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
    _title(axes, f"Gain {gain:+.1f} %, between {low:+.1f} and {high:+.1f} %", _against(verdict, trial))
    return figure


def _reference_lines(axes: Axes, trial: Trial, verdict: Verdict) -> None:
    rule = trial.manifest.rule
    lines = [
        (0.0, "no gain", "-", "#9AA1AB"),
        (rule.margin, "margin", "--", INK),
        (rule.worthwhile, "worthwhile", ":", INK),
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
    if verdict.gain_upper95 is not None and verdict.gain_upper95 < rule.worthwhile:
        return f"Surely below the worthwhile {100 * rule.worthwhile:g} %"
    return f"The interval reaches below the margin of {100 * rule.margin:g} %, so a gain is not shown"


# --- agreement of outputs -------------------------------------------------------------------------------------------


def _agreement(trial: Trial) -> Figure | None:
    blocks = trial.blocks()
    if not blocks:
        return None
    arms = trial.manifest.arms
    passes = sorted(pass_outputs(trial, blocks)[0], key=lambda outputs: arms.index(outputs.arm))
    if len(passes) < 3:
        return None
    agreement = 100 * agreement_matrix(passes)
    np.fill_diagonal(agreement, np.nan)  # a pass with itself says nothing
    figure, axes = _new_figure(6.0, (0.06, 0.06, 0.625, 0.625 * WIDTH_IN / 6.0))
    lowest = float(np.nanmin(agreement))
    image = axes.imshow(agreement, cmap="cividis", vmin=min(lowest, 90.0), vmax=100)
    axes.set_facecolor("#E5E7EB")
    bar = figure.colorbar(image, cax=figure.add_axes((0.73, 0.25, 0.025, 0.5)), label="prompts with equal output, %")
    bar.outline.set_visible(False)
    _arm_boundaries(axes, trial.manifest, len(blocks), agreement)
    _title(axes, *_agreement_titles(trial.manifest, agreement, len(blocks)))
    return figure


def _arm_boundaries(axes: Axes, plan: Manifest, size: int, agreement: NDArray[np.float64]) -> None:
    starts = [size * i for i in range(len(plan.arms))]
    centres = [start + (size - 1) / 2 for start in starts]
    for start in starts[1:]:
        axes.axhline(start - 0.5, color="white", lw=3)
        axes.axvline(start - 0.5, color="white", lw=3)
    axes.set_xticks(centres, list(plan.arms))
    axes.set_yticks(centres, list(plan.arms), rotation=90, va="center")
    axes.tick_params(length=0)
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        for label, arm in zip(labels, plan.arms, strict=True):
            label.set(color=COLOURS[arm], fontweight="bold")
    axes.spines[:].set_visible(False)
    for row, y in zip(starts, centres, strict=True):
        for column, x in zip(starts, centres, strict=True):
            mean = _mean(agreement[row : row + size, column : column + size])
            if mean is not None:
                box = {"boxstyle": "round,pad=0.3", "fc": "white", "ec": "none", "alpha": 0.88}
                axes.text(x, y, f"{mean:.1f} %", ha="center", va="center", fontweight="bold", bbox=box)


def _agreement_titles(plan: Manifest, agreement: NDArray[np.float64], size: int) -> tuple[str, str]:
    cells = "Each cell is a pair of passes, each number the mean of two arms"
    if np.nanmin(agreement) == 100:
        return "Outputs were identical in every pass", cells
    floor = SHUFFLED if SHUFFLED in plan.arms else CONTROL  # the arm that shows what reshuffling changes
    mine, its = (slice(size * plan.arms.index(arm), size * plan.arms.index(arm) + size) for arm in (CANDIDATE, floor))
    across, within = _mean(agreement[mine, its]), _mean(agreement[its, its])
    title = f"Equal outputs: candidate {across:.1f} %" + (f", floor {within:.1f} %" if within is not None else "")
    return title, f"{cells}; the floor is {floor} with {floor}"


def _mean(field: NDArray[np.float64]) -> float | None:
    return None if np.isnan(field).all() else float(np.nanmean(field))


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
    figure, axes = _new_figure(3.2)
    share = np.linspace(0, 100, POINTS)
    for arm, curve in curves.items():
        low, middle, high = np.percentile(curve, [25, 50, 75], axis=0)
        axes.fill_between(share, low, high, color=COLOURS[arm], alpha=0.15, lw=0)
        axes.plot(share, middle, color=COLOURS[arm], lw=1.8, label=arm_label(trial.manifest, arm))
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the pass's steps, %")
    axes.set_ylabel("time of a step, ms")
    said = ", ".join(f"{np.median(curve):.1f} ms {arm}" for arm, curve in curves.items())
    _title(axes, f"Time of a step: {said}", "Median over the passes that count, with their middle half")
    axes.figure.legend(loc="outside lower left", ncols=len(curves), columnspacing=1.6)
    return figure


def _resampled(series: Sequence[float]) -> NDArray[np.float64]:
    """A pass's series on a common axis of 0 to 100 % of its steps."""
    return np.interp(np.linspace(0, 1, POINTS), np.linspace(0, 1, len(series)), series)
