"""The picture of how many outputs two passes have in common, arm by arm.

In: a `Trial`. Out: a figure in the pictures' common style, or None. Whether outputs moved is decided in outputs/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orderproof.measure.evaluate import pass_outputs
from orderproof.measure.trial_records import Manifest
from orderproof.measure.trial_store import Trial
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED, agreement_matrix
from orderproof.runs.style import COLOURS, WIDTH_IN, new_figure, title_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_agreement(trial: Trial) -> Figure | None:
    """Every pass of a block that counts against every other; None below three of them."""
    blocks = trial.blocks()
    if not blocks:
        return None
    arms = trial.manifest.arms
    passes = sorted(pass_outputs(trial, blocks)[0], key=lambda outputs: arms.index(outputs.arm))
    if len(passes) < 3:
        return None
    agreement = 100 * agreement_matrix(passes)
    np.fill_diagonal(agreement, np.nan)  # a pass with itself says nothing
    figure, axes = new_figure(6.0, (0.06, 0.06, 0.625, 0.625 * WIDTH_IN / 6.0))
    lowest = float(np.nanmin(agreement))
    image = axes.imshow(agreement, cmap="cividis", vmin=min(lowest, 90.0), vmax=100)
    axes.set_facecolor("#E5E7EB")
    bar = figure.colorbar(image, cax=figure.add_axes((0.73, 0.25, 0.025, 0.5)), label="prompts with equal output, %")
    bar.outline.set_visible(False)
    _arm_boundaries(axes, trial.manifest, len(blocks), agreement)
    title_above(axes, *_agreement_titles(trial.manifest, agreement, len(blocks)))
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
