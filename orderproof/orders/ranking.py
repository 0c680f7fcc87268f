"""A ranking: what one file per way to order returns, and what it may carry from one window to the next.

Prompts are sorted by rank; those of equal rank stay in the file's order. So a way to order says only what belongs
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
    """What the windows so far leave to the next one: as small after a million prompts as after the first window."""

    windows: int = 0
    last: int | None = None  # rank of the prompt that was sent last
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # what the way to order keeps, under its own names


NOTHING = WindowState()


@dataclass(frozen=True, eq=False)
class Ranking:
    """Ranks of N prompts, and what it takes to make them again."""

    ranks: NDArray[np.int64]  # [N], low ones first
    parameters: Mapping[str, Any] = field(default_factory=dict)  # as JSON holds them
    seeds: Mapping[str, int] = field(default_factory=dict)
    keeps: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # what the next window's `Carried.arrays` holds
    # Rank next to which the window before ended. None: ranks mean the same in every window, so it is `Carried.last`.
    follows: int | None = None
