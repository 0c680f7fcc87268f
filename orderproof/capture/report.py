"""The report of a capture: lines of text, a picture and a JSON file under reports/routing/<job>/."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderproof.capture.capture import Captured
from orderproof.capture.statistics import FAVOURITES, RoutingTable
from orderproof.job.files import atomic_file, write_atomically
from orderproof.job.spec import Job
from orderproof.runs.style import DPI, FAINT, STYLE, WIDTH_IN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIXED, GROUPED = "#0072B2", "#D55E00"  # from Okabe and Ito's palette, as for control and candidate
MOST_GROUPS_NAMED = 24
MISSING_SHOWN = 5


@dataclass(frozen=True)
class RoutingReport:
    """A capture and its statistics."""

    job: str
    captured: Captured
    table: RoutingTable
    toy: bool
    folder: Path

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "job": self.job,
            "toy": self.toy,
            "capture": self.captured.as_json(),
            "table": self.table.as_json(),
            "folder": str(self.folder),
        }


def reports_dir(job: Job) -> Path:
    """reports/routing/<job>."""
    return job.root / "reports" / "routing" / job.name


def write_report(report: RoutingReport) -> None:
    """routing.json and routing.png."""
    write_atomically(report.folder / "routing.json", json.dumps(report.as_json(), indent=1, ensure_ascii=False) + "\n")
    draw(report, report.folder / "routing.png")


def lines(report: RoutingReport) -> list[str]:
    """The table as text."""
    captured, table = report.captured, report.table
    text = [
        f"{report.job}: routes of {captured.captured} of {captured.sampled} sampled prompts (the job has "
        f"{captured.prompts_total}): {captured.prefill_tokens} prefill and {captured.decode_tokens} decode tokens × "
        f"{table.layers} layers, top-{table.top_k} of {table.experts} experts, in {captured.wall_s:.0f} s",
        f"experts per layer that a decode step reads, in batches of any prompts and of one {table.kind}:",
    ]
    for row in table.touched:
        if row.mixed is not None:
            grouped = (
                f"{row.grouped:6.1f}" if row.grouped is not None else f"     – (no {table.kind} has that many prompts)"
            )
            saved = f"  {row.saved:5.1%} fewer" if row.saved is not None else ""
            text.append(f"  batch {row.batch:4d}  {row.mixed:6.1f} {grouped}{saved}")
    if table.favourite_share is not None:
        text.append(
            f"a {table.kind} sends {table.favourite_share:.0%} of its decode traffic to its favourite "
            f"{table.experts // FAVOURITES} experts of a layer; all prompts together {table.favourite_share_mixed:.0%}"
        )
    for prompt_id, reason in list(captured.missing.items())[:MISSING_SHOWN]:
        text.append(f"missing: {prompt_id}: {reason}")
    if len(captured.missing) > MISSING_SHOWN:
        text.append(f"missing: {len(captured.missing) - MISSING_SHOWN} more prompts")
    text += ["a toy model: do not expect these figures of your model"] if report.toy else []
    return [*text, f"routes: {captured.path}", f"picture: {report.folder / 'routing.png'}"]


def draw(report: RoutingReport, path: Path) -> None:
    """Distinct experts over batch size, and each group's share on its favourites."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(5, 4))
        _draw_touched(left, report.table)
        _draw_favourites(right, report.table)
        toy = "; toy model: not your figures" if report.toy else ""
        figure.suptitle(
            f"{report.job}: {report.captured.captured} prompts{toy}", x=0.01, ha="left", fontsize=9.5, color=FAINT
        )
        with atomic_file(path) as sink:
            figure.savefig(sink, format="png", dpi=DPI, facecolor="white")


def _draw_touched(axes: Axes, table: RoutingTable) -> None:
    for name, colour, mark, key in (
        ("any prompts", MIXED, "o", "mixed"),
        (f"one {table.kind}", GROUPED, "s", "grouped"),
    ):
        points = [(row.batch, getattr(row, key)) for row in table.touched if getattr(row, key) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker=mark, label=f"batch of {name}")
    axes.axhline(table.experts, color=FAINT, lw=0.8, ls="--")
    axes.text(1, table.experts, f"all {table.experts}", transform=axes.get_yaxis_transform(), ha="right", va="bottom",
              color=FAINT, fontsize=9)  # fmt: skip
    axes.set_xscale("log", base=2)
    sizes = [row.batch for row in table.touched]
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel="sequences in the batch", ylabel="experts per layer and step", ylim=(0, 1.1 * table.experts))
    axes.set_title("Experts that a step reads", pad=8)
    axes.legend(loc="lower right")


def _draw_favourites(axes: Axes, table: RoutingTable) -> None:
    groups = [group for group in table.groups if group.favourite_share is not None]
    groups = sorted(groups, key=lambda group: -group.prompts)[:MOST_GROUPS_NAMED][::-1]
    names = [group.name for group in groups]
    axes.barh(names, [100 * (group.favourite_share or 0) for group in groups], color=GROUPED, height=0.7)
    if table.favourite_share_mixed is not None:
        axes.axvline(100 * table.favourite_share_mixed, color=MIXED, lw=1.2, label="all prompts together")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=9)
    axes.set(xlim=(0, 100), xlabel="% of decode traffic")
    axes.tick_params(axis="y", labelsize=9 if len(names) <= 12 else 6.5)
    axes.set_title(f"A {table.kind}'s favourite quarter", pad=8)
