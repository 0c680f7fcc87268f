"""What captured routes show, as the record of a run and as a picture."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from orderproof.capture.capture import Captured, Sample
from orderproof.capture.statistics import FAVOURITES, RoutingTable
from orderproof.job.files import atomic_file
from orderproof.job.formatting import percentage
from orderproof.job.model import ModelFacts
from orderproof.job.spec import Job
from orderproof.runs.run import Basis, Figure, Run
from orderproof.runs.run_store import identity_of
from orderproof.runs.style import DPI, FAINT, STYLE, WIDTH_IN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIXED, GROUPED = "#0072B2", "#D55E00"  # from Okabe and Ito's palette, as for control and candidate
MOST_GROUPS_NAMED = 24
MISSING_SHOWN = 5


def capture_run(
    job: Job, model: ModelFacts, sample: Sample, captured: Captured, table: RoutingTable, started: datetime.datetime
) -> Run:
    """The run of a capture."""
    return Run(
        **identity_of(job, "capture", started),
        answer="captured",
        sentence=(
            f"{job.name}: routes of {captured.captured} of {captured.sampled} sampled prompts (the job has "
            f"{captured.prompts_total}), {table.layers} layers, top-{table.top_k} of {table.experts} experts"
        ),
        lines=(*_lines(job, captured, table), *sample.prompts.left_out_lines),
        next_command=f"orderproof plan {job.name}",
        basis=Basis.of(job, model, sample.dataset_md5, captured.prompts_total),
        figures=(
            Figure(name="captured", value=captured.captured),
            Figure(name="sampled", value=captured.sampled),
            Figure(name="prefill_tokens", value=captured.prefill_tokens),
            Figure(name="decode_tokens", value=captured.decode_tokens),
            Figure(name="wall_s", value=captured.wall_s),
            Figure(name="favourite_share", value=table.favourite_share),
            Figure(name="favourite_share_mixed", value=table.favourite_share_mixed),
        ),
        details={"capture": captured.as_json(reasons=job.reporting.log_text), "table": table.as_json()},
        files={"routes": str(captured.path.relative_to(job.root))},
    )


def _lines(job: Job, captured: Captured, table: RoutingTable) -> list[str]:
    lines = [
        f"{captured.prefill_tokens} prefill and {captured.decode_tokens} decode tokens in {captured.wall_s:.0f} s",
        f"experts per layer that a decode step reads, in batches of any prompts and of one {table.kind}:",
    ]
    for row in table.touched:
        if row.mixed is not None:
            grouped = (
                f"{row.grouped:6.1f}" if row.grouped is not None else f"     – (no {table.kind} has so many prompts)"
            )
            saved = f"  {row.saved:5.1%} fewer" if row.saved is not None else ""
            lines.append(f"  batch {row.batch:4d}  {row.mixed:6.1f} {grouped}{saved}")
    if table.favourite_share is not None:
        lines.append(
            f"a {table.kind} sends {percentage(table.favourite_share)} of its decode traffic to its favourite "
            f"{table.experts // FAVOURITES} experts of a layer; all prompts together "
            f"{percentage(table.favourite_share_mixed or 0)}"
        )
    if captured.missing and not job.reporting.log_text:
        where = captured.path.relative_to(job.root)
        return [
            *lines,
            f"missing: {len(captured.missing)} of {captured.sampled} prompts: the metadata of {where} has the reasons",
        ]
    for prompt_id, why in list(captured.missing.items())[:MISSING_SHOWN]:
        lines.append(f"missing: {prompt_id}: {why}")
    if len(captured.missing) > MISSING_SHOWN:
        lines.append(f"missing: and {len(captured.missing) - MISSING_SHOWN} more prompts")
    return lines


def draw_capture(job: str, captured: Captured, table: RoutingTable, toy: bool, path: Path) -> None:
    """Distinct experts over batch size, and each group's share on its favourite experts."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(STYLE):
        figure = Canvas(figsize=(WIDTH_IN, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(5, 4))
        _draw_touched(left, table)
        _draw_favourites(right, table)
        title = f"{job}: {captured.captured} prompts" + ("; toy model" if toy else "")
        figure.suptitle(title, x=0.01, ha="left", fontsize=9.5, color=FAINT)
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
