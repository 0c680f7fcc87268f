"""The picture of a reproduction: what share of the outputs is still the same, token by token.

In: a `Reproduction`. Out: a PNG file, or none where no output diverged. Knows nothing of trackers or engines.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from orderproof.job.files import atomic_file
from orderproof.reproduce.record import Reproduction
from orderproof.runs.style import DPI, FAINT, STYLE, WIDTH_IN

SHOWN_CHANGES = 3
SAME = "#0072B2"  # from Okabe and Ito's palette


def draw_divergence(made: Reproduction, path: Path) -> Path | None:
    """Draw where outputs diverge. Returns `path`, or None if none does."""
    if not made.outputs.same_until:
        return None
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    tokens, shares = np.array(made.outputs.same_until).T
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 3.4), layout="constrained")
        axes = figure.subplots()
        axes.step(tokens, shares, where="post", color=SAME, linewidth=1.6)
        axes.set(xlabel="generated tokens", ylabel="same so far", xlim=(0, None), ylim=(0, 1.02))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_title(f"{made.lossy_first}{made.job}: outputs that are the same as in the baseline", wrap=True)
        axes.text(0, 1.05, _subtitle(made), transform=axes.transAxes, color=FAINT, fontsize=9)
        with atomic_file(path) as sink:
            figure.savefig(sink, format="png", dpi=DPI, facecolor="white")
    return path


def _subtitle(made: Reproduction) -> str:
    named = [change.split(":")[0] for change in made.changes]
    changed = ", ".join(named[:SHOWN_CHANGES]) + (" …" if len(named) > SHOWN_CHANGES else "")
    since = f"changed since: {changed}" if named else "no setting changed" if made.changes_known else "unknown settings"
    toy = "; toy model" if made.toy else ""
    return f"{made.outputs.diverged} of {made.outputs.compared} diverge; {since}{toy}"
