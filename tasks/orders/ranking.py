"""A ranking: what one file per way to order returns.

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
class Ranking:
    """Ranks of N prompts, and what it takes to make them again."""

    ranks: NDArray[np.int64]  # [N], low ones first
    parameters: Mapping[str, Any] = field(default_factory=dict)  # as JSON holds them
    seeds: Mapping[str, int] = field(default_factory=dict)
