"""Time and work of slices that were sent one after another in a single run, so that the queue never ran empty.

A slice's window begins when the scheduler admits its request after the wash-out and ends when it admits the first
request of the next slice. Tokens count for the window in which they were generated, whoever's they are: a request
generates as many in every step from its admission to its end. Evenly in time would be wrong, because steps of one order
are faster: it would move tokens of long requests from the faster order's windows to the slower one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SentRequests:
    """The requests of a run in the order of sending; arrays of one value per request, NaN where it failed."""

    admitted_s: Floats  # the engine's clock
    ended_s: Floats  # the same clock
    prompt_tokens: Floats
    output_tokens: Floats
    arm: NDArray[np.str_]
    step_ends_s: Floats  # the same clock, one value per step of the engine; empty: not known, then evenly in time

    def step_at(self, moment: Floats) -> Floats:
        """Steps that had ended by then; a step under way counts in part."""
        if len(self.step_ends_s) < 2:
            return moment
        return np.asarray(np.interp(moment, self.step_ends_s, np.arange(1.0, len(self.step_ends_s) + 1)))


@dataclass(frozen=True)
class Window:
    """What happened between two admissions."""

    start_s: float  # the engine's clock
    seconds: float
    prompt_tokens: float  # of requests admitted in it
    output_tokens: float  # generated in it
    foreign_tokens: float  # of those, by requests of other arms


def cut_windows(requests: SentRequests, sizes: Sequence[int], arms: Sequence[str], washout: int) -> list[Window]:
    """A window for each slice; what follows the last slice are fillers, which give it an end.

    Args:
        sizes, arms: of the slices, in the order of sending.
        washout: requests of a slice that are admitted before its clock starts.

    Raises:
        ValueError: no filler follows the last slice.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)])
    if starts[-1] >= len(requests.admitted_s):
        raise ValueError("a filler must follow the last slice, or its window has no end")
    # Admission in the order of sending, also where replicas admit side by side; a failed request is admitted with the
    # next one.
    clock = np.fmin.accumulate(requests.admitted_s[::-1])[::-1]
    windows = []
    for first, size, arm in zip(starts[:-1], sizes, arms, strict=True):
        start, end = float(clock[first + min(washout, size - 1)]), float(clock[first + size])
        windows.append(_window(requests, start, end, arm))
    return windows


def _window(requests: SentRequests, start: float, end: float, arm: str) -> Window:
    admission, last = requests.step_at(requests.admitted_s), requests.step_at(requests.ended_s)
    first_inside, last_inside = requests.step_at(np.array([start, end]))
    inside = np.minimum(last, last_inside) - np.maximum(admission, first_inside)
    generated = np.nan_to_num(requests.output_tokens * np.maximum(inside, 0) / np.maximum(last - admission, 1e-9))
    admitted = (requests.admitted_s >= start) & (requests.admitted_s < end)
    return Window(
        start_s=start,
        seconds=end - start,
        prompt_tokens=float(requests.prompt_tokens[admitted].sum()),
        output_tokens=float(generated.sum()),
        foreign_tokens=float(generated[requests.arm != arm].sum()),
    )
