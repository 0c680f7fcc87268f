"""By label: what the file itself says belongs together."""

from __future__ import annotations

import numpy as np

from orderproof.tasks.jobs import OrderSpec
from orderproof.tasks.orders.order import OrderError
from orderproof.tasks.orders.ranking import Ranking
from orderproof.tasks.orders.view import PromptView
from orderproof.tasks.signals import Progress


def rank(prompts: PromptView, spec: OrderSpec, progress: Progress | None = None) -> Ranking:
    """Labels in the order of their first appearance: a file that is grouped already stays as it is.

    Raises:
        OrderError: a prompt has no label; it is named.
    """
    missing = [i for i, label in enumerate(prompts.labels) if label is None]
    if missing:
        more = f", like {len(missing) - 1} more prompts" if len(missing) > 1 else ""
        raise OrderError(
            f"{prompts.where(missing[0])} lacks a `label`{more}: the label order needs one on every prompt. "
            "Add it, or use the method `cluster`, which needs none"
        )
    places: dict[str | None, int] = {}
    ranks = (places.setdefault(label, len(places)) for label in prompts.labels)
    return Ranking(np.fromiter(ranks, np.int64, len(prompts)))
