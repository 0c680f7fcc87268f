"""What a step costs: `base(batch) + c × Σ_layers distinct experts`, plus a cost per prompt token read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class StepCosts:
    """The constants of one model on one machine.

    Between the batch sizes given, base is interpolated; outside them the nearest one is used, because nothing was timed
    there.
    """

    batches: tuple[float, ...]  # ascending
    base_ms: tuple[float, ...]  # at each of `batches`
    expert_ms: float  # c: of one distinct expert in one layer
    source: str  # where the constants come from, in words for a reader
    prefill_token_ms: float = 0.0

    def ms(self, running: ArrayLike, experts: ArrayLike, prefill_tokens: ArrayLike) -> NDArray[np.float64]:
        """Milliseconds of steps.

        Args:
            running: [steps] sequences; experts: [steps] Σ over layers; prefill_tokens: [steps].
        """
        base = np.interp(np.asarray(running, np.float64), self.batches, self.base_ms)
        return base + self.expert_ms * np.asarray(experts) + self.prefill_token_ms * np.asarray(prefill_tokens)
