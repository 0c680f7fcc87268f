"""The picture of a plan: the predicted gain of every order with its interval, and today's order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orderproof.forecast.planning import JobForecast
from orderproof.job.files import atomic_file
from orderproof.runs.style import COLOURS, DPI, FAINT, INK, STYLE, WIDTH_IN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN = 0.32


def draw(job_forecast: JobForecast, path: Path) -> None:
    """Predicted gains over shuffled, the candidate's in its colour; the minimum effect is counted from today's gain."""
    import matplotlib
    from matplotlib.figure import Figure

    forecast = job_forecast.forecast
    assert forecast is not None
    shown = [forecast.today, *forecast.predictions][::-1]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 1.7 + ROW_IN * len(shown)), layout="constrained")
        axes = figure.subplots()
        for row, prediction in enumerate(shown):
            colour = COLOURS["candidate"] if prediction.name == job_forecast.advice.candidate else COLOURS["control"]
            colour = INK if prediction is forecast.today else colour
            low, high = 100 * (prediction.gain - prediction.low), 100 * (prediction.high - prediction.gain)
            axes.errorbar(100 * prediction.gain, row, xerr=[[low], [high]], fmt="o", color=colour, capsize=3)
        names = ["today's order" if prediction is forecast.today else prediction.name for prediction in shown]
        axes.set_yticks(range(len(shown)), names)
        axes.set(xlabel="predicted gain over shuffled, %")
        axes.set_ylim(-0.6, len(shown) - 0.4)
        min_effect = (1 + forecast.today.gain) * (1 + job_forecast.rule.min_effect) - 1
        _mark(axes, 0, "shuffled", "-", leftmost=min_effect > 0)
        _mark(axes, 100 * min_effect, "minimum effect", "--", leftmost=min_effect <= 0)
        toy = " (toy model)" if job_forecast.model.toy else ""
        axes.set_title(f"{job_forecast.job}: {job_forecast.advice.answer}{toy}", wrap=True)
        with atomic_file(path) as sink:
            figure.savefig(sink, format="png", dpi=DPI, facecolor="white")


def _mark(axes: Axes, at: float, name: str, style: str, *, leftmost: bool) -> None:
    """A line with its name above the plot, where no point can lie, and outside of the two, where no other name does."""
    axes.axvline(at, color=FAINT, lw=0.8, ls=style, zorder=0)
    axes.annotate(name, (at, 1), (0, 4), ("data", "axes fraction"), "offset points", color=FAINT, fontsize=9,
                  ha="right" if leftmost else "left", va="bottom")  # fmt: skip
