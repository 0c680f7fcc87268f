"""A ranking: what each way to order returns, and the state that it passes from one window to the next.

Prompts are sorted by rank; those of equal rank stay in the file's order. So a way to order only decides what belongs
together and what comes first, and window.py can apply any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class WindowState:
    """What the windows so far pass on to the next one; its size does not grow with the number of prompts."""

    windows: int = 0  # ordered so far
    last_rank: int | None = None  # of the prompt that was sent last
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # the way to order chooses their names


FIRST_WINDOW = WindowState()


@dataclass(frozen=True, eq=False)
class Ranking:
    """Ranks of N prompts, and what is needed to compute them again."""

    ranks: NDArray[np.int64]  # [N], lowest first
    parameters: Mapping[str, Any] = field(default_factory=dict)  # values that JSON can hold
    seeds: Mapping[str, int] = field(default_factory=dict)
    next_state: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # `WindowState.arrays` of the next window
    # The previous window's last rank, on the scale of these ranks. None: the scale has not changed, so it is
    # `WindowState.last_rank`.
    previous_rank: int | None = None
