"""The style of every picture: colours, markers, sizes, titles.

The colours (Okabe and Ito's palette) are distinct for colour-blind readers, the markers also in black and white.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {CONTROL: "#0072B2", CANDIDATE: "#D55E00", SHUFFLED: "#6F7680"}
MARKS = {CONTROL: "o", CANDIDATE: "s", SHUFFLED: "^"}
INK, FAINT, BAND = "#1B1F24", "#6B7280", "#F3F4F6"
WIDTH_IN, DPI = 8.0, 160
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


def new_figure(height_in: float, place: tuple[float, float, float, float] | None = None) -> tuple[Figure, Axes]:
    """A figure of the page's width. `place`: left, bottom, width, height as fractions, instead of a computed layout."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout=None if place else "constrained")
    return figure, figure.add_axes(place) if place else figure.add_subplot()


def title_above(axes: Axes, title: str, below: str) -> None:
    """Write a title, and a line of explanation between the title and the picture."""
    axes.set_title(title)
    axes.annotate(below, (0, 1), (0, 8), "axes fraction", "offset points", color=FAINT, va="bottom", fontsize=9.5)
