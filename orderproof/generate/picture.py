"""The picture of a batch's run: time per batch and sequences, from its first step to its last.

In: a `BatchRun`. Out: a PNG file, or none where there is nothing to draw. Knows nothing of trackers or engines.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from orderproof.generate.record import BatchRun
from orderproof.job.files import atomic_file
from orderproof.runs.style import DPI, FAINT, STYLE, WIDTH_IN

TIME, RUNNING, WAITING = "#0072B2", "#009E73", "#9AA1AB"  # from Okabe and Ito's palette
HIGHEST_SHOWN_PERCENTILE = 99.5  # a first step that compiles would flatten the rest


def draw_batch(run: BatchRun, path: Path) -> Path | None:
    """Draw a run's steps. Returns `path`, or None if it took none."""
    if not run.curve:
        return None
    import matplotlib
    from matplotlib.figure import Figure

    ms, running, waiting = np.array(run.curve).T
    at = np.linspace(0, run.steps, len(ms), endpoint=False)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 5.2), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        upper.plot(at, ms, color=TIME, linewidth=1)
        if run.time_per_batch_ms is not None:
            upper.axhline(run.time_per_batch_ms, color=FAINT, linewidth=0.8, linestyle="--")
        upper.set_ylim(0, max(1e-3, 1.15 * float(np.percentile(ms, HIGHEST_SHOWN_PERCENTILE))))
        upper.set_ylabel("time per batch (ms)")
        upper.set_title(_title(run), wrap=True)
        upper.text(0, 1.03, _subtitle(run), transform=upper.transAxes, color=FAINT, fontsize=9)
        lower.plot(at, running, color=RUNNING, linewidth=1.2, label="running")
        lower.plot(at, waiting, color=WAITING, linewidth=1.2, label="waiting in the engine")
        lower.set(ylabel="sequences", xlabel="step", ylim=(0, None))
        lower.legend(loc="upper right", ncols=2, bbox_to_anchor=(1, 1.16), fontsize=9)
        with atomic_file(path) as sink:
            figure.savefig(sink, format="png", dpi=DPI, facecolor="white")
    return path


def _title(run: BatchRun) -> str:
    return f"{run.lossy_first}{run.job}: {run.generated} requests in {run.order.method} order"


def _subtitle(run: BatchRun) -> str:
    rates = f"{run.throughput_req_s or 0:.2f} req/s, {run.throughput_tok_s or 0:.0f} tok/s"
    times = f"median {run.time_per_batch_ms or 0:.3g} ms (dashed), p95 {run.time_per_batch_p95_ms or 0:.3g} ms a step"
    return f"{rates}; {times}" + ("; toy model: not your figures" if run.toy else "")
