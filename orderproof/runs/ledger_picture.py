"""A job over time, from its ledger: gain with interval of each trial, the verdicts, and in which order the job ran."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from orderproof.job.files import atomic_file
from orderproof.job.spec import Job
from orderproof.runs.ledger import FILE, Entry, read
from orderproof.runs.run import TOY
from orderproof.runs.style import DPI, FAINT, STYLE, new_figure, title_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEDGER_PICTURE = "ledger.png"
# Okabe and Ito's palette, and a marker for readers without colours.
VERDICTS = {
    "promote": ("#009E73", "o"),
    "keep": ("#0072B2", "s"),
    "inconclusive": ("#E69F00", "D"),
    "refused": ("#6B7280", "x"),
    "invalid": ("#D55E00", "X"),
}
PROMOTED, OWN = "#009E73", "#9AA1AB"


def draw_ledger(job: Job, path: Path) -> None:
    """Draw a job's ledger; no picture if it is empty."""
    entries = read(job.data_dir / FILE)
    if not entries:
        return
    import matplotlib
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(3.6)
        _draw_changes(axes, entries)
        _draw_trials(axes, [entry for entry in entries if entry.verb == "measure"])
        _draw_generations(axes, [entry for entry in entries if entry.verb == "generate"])
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.set_ylabel("gain, %")
        axes.margins(x=0.08)
        locator = AutoDateLocator(minticks=2, maxticks=8)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        toy = f"; {TOY}" if entries[-1].toy else ""
        below = f"Trials with 95 % intervals; ticks below: generations, green in a promoted order{toy}"
        title_above(axes, f"{job.name} over time", below)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)
        with atomic_file(path) as sink:
            figure.savefig(sink, format="png", dpi=DPI, facecolor="white")


def _time(entry: Entry) -> datetime.datetime:
    return datetime.datetime.fromisoformat(entry.ended_utc)


def _draw_trials(axes: Axes, trials: Sequence[Entry]) -> None:
    for verdict, (colour, mark) in VERDICTS.items():
        some = [entry for entry in trials if entry.answer == verdict]
        if not some:
            continue
        gains = [100 * (entry.gain or 0) for entry in some]
        below = [100 * ((e.gain or 0) - (e.gain_low if e.gain_low is not None else e.gain or 0)) for e in some]
        above = [100 * ((e.gain_high if e.gain_high is not None else e.gain or 0) - (e.gain or 0)) for e in some]
        axes.errorbar(
            list(map(_time, some)),  # type: ignore[arg-type]
            gains,
            yerr=[below, above],
            fmt=mark,
            color=colour,
            capsize=3,
            label=f"{verdict} ({len(some)})",
        )


def _draw_generations(axes: Axes, runs: Sequence[Entry]) -> None:
    for in_order, colour in ((True, PROMOTED), (False, OWN)):
        times = [_time(entry) for entry in runs if bool(entry.trial) == in_order]
        if times:
            axes.plot(
                times,  # type: ignore[arg-type]
                [0.02] * len(times),
                "|",
                color=colour,
                markersize=12,
                markeredgewidth=2,
                transform=axes.get_xaxis_transform(),
                label=f"run in {'promoted' if in_order else 'its own'} order ({len(times)})",
            )


def _draw_changes(axes: Axes, entries: Sequence[Entry]) -> None:
    """Where model or engine are other ones than before."""
    for before, after in pairwise(entries):
        changed = [
            name
            for name, old, new in (("model", before.model, after.model), ("engine", before.engine, after.engine))
            if old and new and old != new
        ]
        if changed:
            axes.axvline(_time(after), color=FAINT, linewidth=1, linestyle=":")  # type: ignore[arg-type]
            place = (_time(after), 0.98)
            axes.annotate(
                f" new {' and '.join(changed)}",
                place,
                xycoords=axes.get_xaxis_transform(),
                color=FAINT,
                fontsize=9,
                va="top",
            )
