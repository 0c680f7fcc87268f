"""The method `label`: group prompts by the `label` that the file gives them."""

from __future__ import annotations

import numpy as np

from orderproof.job.spec import OrderSpec
from orderproof.orders.order import OrderError
from orderproof.orders.ranking import FIRST_WINDOW, Ranking, WindowState
from orderproof.orders.view import PromptView


def rank(prompts: PromptView, spec: OrderSpec, state: WindowState = FIRST_WINDOW) -> Ranking:
    """Rank labels in the order of their first appearance, so that a file that is grouped already stays as it is.

    The labels so far are passed from window to window, so that a label has the same rank in all of them.

    Raises:
        OrderError: a prompt has no label; names it.
    """
    missing = [i for i, label in enumerate(prompts.labels) if label is None]
    if missing:
        more = f" (and {len(missing) - 1} more prompts)" if len(missing) > 1 else ""
        raise OrderError(
            f"{prompts.where(missing[0])} has no `label`{more}: the method `label` needs one for every prompt. "
            "Add it, or use the method `cluster`, which needs none"
        )
    known_labels = state.arrays.get("labels", np.empty(0)).tolist()
    rank_of: dict[str | None, int] = {label: k for k, label in enumerate(known_labels)}
    ranks = np.fromiter((rank_of.setdefault(label, len(rank_of)) for label in prompts.labels), np.int64, len(prompts))
    return Ranking(ranks, next_state={"labels": np.array(list(rank_of), np.str_)})
