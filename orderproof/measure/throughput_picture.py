"""Throughput of both arms over a trial's time: the drift that pairs and coins cancel."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from orderproof.measure.trial_records import SliceRecord
from orderproof.measure.trial_store import Trial
from orderproof.outputs.passes import CANDIDATE, CONTROL
from orderproof.runs.style import BAND, COLOURS, FAINT, MARKS, new_figure, title_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED_BLOCKS = 12


def draw_throughput(trial: Trial, labels: Mapping[str, str]) -> Figure | None:
    """A mark for each slice at its time; None without one.

    Args:
        labels: of the arms.
    """
    if not trial.slices:
        return None
    figure, axes = new_figure(3.7)
    minutes = slice_minutes(trial.slices)
    again = {id(part) for part in trial.repeated()}
    _draw_blocks(axes, trial, minutes)
    for arm in trial.manifest.arms:
        own = [k for k, part in enumerate(trial.slices) if part.arm == arm]
        counted = [k for k in own if id(trial.slices[k]) not in again]
        axes.plot(
            [minutes[k] for k in counted],
            [trial.slices[k].tokens_per_s for k in counted],
            color=COLOURS[arm],
            lw=0.8,
            alpha=0.35,
            zorder=2,
        )
        for k in own:
            hollow = id(trial.slices[k]) in again
            face = "white" if hollow else COLOURS[arm]
            rate = trial.slices[k].tokens_per_s
            axes.plot(minutes[k], rate, MARKS[arm], ms=4.5, mfc=face, mec=COLOURS[arm], mew=1.0, zorder=3)
    rates = [part.tokens_per_s for part in trial.slices]
    axes.set_ylim(max(0.0, 0.9 * min(rates)), 1.1 * max(rates))  # room for the blocks' names
    axes.set_xlim(left=0)
    axes.set_xlabel("minutes of the trial")
    axes.set_ylabel("generated tokens per second")
    below = "Each mark is a slice; the two of a pair run one after the other, in an order that a coin decided"
    title_above(axes, faster_in(trial), below)
    _draw_legend(axes, trial, labels, bool(again))
    return figure


def slice_minutes(slices: Sequence[SliceRecord]) -> list[float]:
    """The middle of each slice's window, in minutes since the trial's first slice."""
    starts: dict[tuple[int, int], tuple[float, float]] = {}  # of each block's run: wall clock, engine's clock
    for part in slices:
        wall = datetime.datetime.fromisoformat(part.started_utc).timestamp()
        before = starts.get((part.block, part.run))
        starts[part.block, part.run] = min(before, (wall, part.start_s)) if before else (wall, part.start_s)
    origin = min(wall for wall, _ in starts.values())
    minutes = []
    for part in slices:
        wall, clock = starts[part.block, part.run]
        minutes.append((wall - origin + part.start_s - clock + part.seconds / 2) / 60)
    return minutes


def faster_in(trial: Trial) -> str:
    """In how many pairs the candidate's slice was faster."""
    pairs = [
        block.slices[CANDIDATE, stratum].tokens_per_s > block.slices[CONTROL, stratum].tokens_per_s
        for block in trial.blocks()
        for stratum in range(trial.manifest.slices.strata)
    ]
    if not pairs:
        return "No block is complete"
    return f"The candidate was faster than the control in {sum(pairs)} of {len(pairs)} pairs"


def _draw_blocks(axes: Axes, trial: Trial, minutes: Sequence[float]) -> None:
    numbers = np.array([part.block for part in trial.slices])
    times = np.array(minutes)
    every = -(-len(set(numbers.tolist())) // MOST_NAMED_BLOCKS)
    for number in sorted(set(numbers.tolist())):
        own = times[numbers == number]
        if number % 2:
            axes.axvspan(own.min(), own.max(), color=BAND, lw=0, zorder=0)
        if (number - 1) % every == 0:
            place = (float(own.mean()), 0.98)
            axes.text(*place, f"block {number}", transform=axes.get_xaxis_transform(), ha="center", va="top",
                      fontsize=8, color=FAINT)  # fmt: skip


def _draw_legend(axes: Axes, trial: Trial, labels: Mapping[str, str], again: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], ls="", marker=MARKS[arm], color=COLOURS[arm], ms=7, label=labels[arm])
        for arm in trial.manifest.arms
    ]
    if again:
        handles.append(Line2D([], [], ls="", marker="o", mfc="white", mec=FAINT, ms=7, label="run again"))
    axes.figure.legend(
        handles=handles, loc="outside lower left", ncols=len(handles), handletextpad=0.2, columnspacing=1.6
    )
