"""The picture of a generation: time per batch and number of sequences, by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from orderproof.generate.record import lossy_prefix
from orderproof.job.files import atomic_file
from orderproof.runs.run import Run
from orderproof.runs.style import DPI, FAINT, STYLE, WIDTH_IN

TIME, RUNNING, WAITING = "#0072B2", "#009E73", "#9AA1AB"  # from Okabe and Ito's palette
HIGHEST_SHOWN_PERCENTILE = 99.5  # a slow first step (compilation) would hide the rest


def draw_generation(run: Run, path: Path) -> None:
    """Draw a run's steps; no picture if there are none."""
    curve = np.array(run.details.get("curve") or [], np.float64)
    if not len(curve):
        return
    import matplotlib
    from matplotlib.figure import Figure

    ms, running, waiting = curve.T
    steps = np.linspace(0, run.figure("steps") or len(ms), len(ms), endpoint=False)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 5.2), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        upper.plot(steps, ms, color=TIME, linewidth=1)
        if (median := run.figure("time_per_batch_ms")) is not None:
            upper.axhline(median, color=FAINT, linewidth=0.8, linestyle="--")
        upper.set_ylim(0, max(1e-3, 1.15 * float(np.percentile(ms, HIGHEST_SHOWN_PERCENTILE))))
        upper.set_ylabel("time per batch (ms)")
        upper.set_title(_title(run), wrap=True)
        upper.text(0, 1.03, _subtitle(run), transform=upper.transAxes, color=FAINT, fontsize=9)
        lower.plot(steps, running, color=RUNNING, linewidth=1.2, label="running")
        lower.plot(steps, waiting, color=WAITING, linewidth=1.2, label="waiting in the engine")
        lower.set(ylabel="sequences", xlabel="step", ylim=(0, None))
        lower.legend(loc="upper right", ncols=2, bbox_to_anchor=(1, 1.16), fontsize=9)
        with atomic_file(path) as sink:
            figure.savefig(sink, format="png", dpi=DPI, facecolor="white")


def _title(run: Run) -> str:
    method = run.basis.order.method if run.basis.order else "file"
    generated = run.figure("generated") or 0
    return f"{lossy_prefix(run.basis.lossy_k0)}{run.job}: {generated:.0f} requests in {method} order"


def _subtitle(run: Run) -> str:
    values = {figure.name: figure.value or 0.0 for figure in run.figures}
    rates = f"{values.get('throughput_req_s', 0):.2f} req/s, {values.get('throughput_tok_s', 0):.0f} tok/s"
    median, p95 = values.get("time_per_batch_ms", 0), values.get("time_per_batch_p95_ms", 0)
    toy = "; toy model" if run.basis.toy else ""
    return f"{rates}; per step median {median:.3g} ms (dashed), p95 {p95:.3g} ms{toy}"
