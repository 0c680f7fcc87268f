"""The method `file`: keep the file's own order, as a job does without orderproof."""

from __future__ import annotations

import numpy as np

from orderproof.job.spec import OrderSpec
from orderproof.orders.ranking import FIRST_WINDOW, Ranking, WindowState
from orderproof.orders.view import PromptView


def rank(prompts: PromptView, spec: OrderSpec, state: WindowState = FIRST_WINDOW) -> Ranking:
    """Give all prompts the same rank."""
    return Ranking(np.zeros(len(prompts), np.int64))
