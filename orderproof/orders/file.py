"""The file's own order: what a job does without orderproof."""

from __future__ import annotations

import numpy as np

from orderproof.job.spec import OrderSpec
from orderproof.orders.ranking import NOTHING, Ranking, WindowState
from orderproof.orders.view import PromptView
from orderproof.signals.registry import Progress


def rank(
    prompts: PromptView, spec: OrderSpec, progress: Progress | None = None, carried: WindowState = NOTHING
) -> Ranking:
    """All equal."""
    return Ranking(np.zeros(len(prompts), np.int64))
