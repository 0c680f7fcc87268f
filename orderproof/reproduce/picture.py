"""The picture of a reproduction: the share of outputs that are still the same, by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from orderproof.generate.record import lossy_prefix
from orderproof.job.files import atomic_file
from orderproof.reproduce.record import Reproduction
from orderproof.runs.run import Run
from orderproof.runs.style import DPI, FAINT, STYLE, WIDTH_IN

SHOWN_CHANGES = 3
SAME = "#0072B2"  # from Okabe and Ito's palette


def draw_divergence(run: Run, reproduction: Reproduction, path: Path) -> None:
    """Draw where outputs diverge; no picture if none does."""
    if not reproduction.outputs.same_until:
        return
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    tokens, shares = np.array(reproduction.outputs.same_until).T
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 3.4), layout="constrained")
        axes = figure.subplots()
        axes.step(tokens, shares, where="post", color=SAME, linewidth=1.6)
        axes.set(xlabel="generated tokens", ylabel="outputs still the same", xlim=(0, None), ylim=(0, 1.02))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_title(
            f"{lossy_prefix(run.basis.lossy_k0)}{run.job}: outputs that are the same as in the baseline", wrap=True
        )
        axes.text(0, 1.05, _subtitle(run, reproduction), transform=axes.transAxes, color=FAINT, fontsize=9)
        with atomic_file(path) as sink:
            figure.savefig(sink, format="png", dpi=DPI, facecolor="white")


def _subtitle(run: Run, reproduction: Reproduction) -> str:
    named = [change.split(":")[0] for change in reproduction.changes]
    changed = ", ".join(named[:SHOWN_CHANGES]) + (" …" if len(named) > SHOWN_CHANGES else "")
    since = (
        f"changed since: {changed}"
        if named
        else "no setting changed"
        if reproduction.changes_known
        else "unknown settings"
    )
    toy = "; toy model" if run.basis.toy else ""
    return f"{reproduction.outputs.diverged} of {reproduction.outputs.compared} diverge; {since}{toy}"
