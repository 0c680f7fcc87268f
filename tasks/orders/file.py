"""The file's own order: what a job does without orderproof."""

from __future__ import annotations

import numpy as np

from orderproof.tasks.jobs import OrderSpec
from orderproof.tasks.orders.ranking import NOTHING, Carried, Ranking
from orderproof.tasks.orders.view import PromptView
from orderproof.tasks.signals import Progress


def rank(prompts: PromptView, spec: OrderSpec, progress: Progress | None = None, carried: Carried = NOTHING) -> Ranking:
    """All equal."""
    return Ranking(np.zeros(len(prompts), np.int64))
