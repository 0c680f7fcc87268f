"""By label: what the file itself says belongs together."""

from __future__ import annotations

import numpy as np

from orderproof.job.spec import OrderSpec
from orderproof.orders.order import OrderError
from orderproof.orders.ranking import NOTHING, Ranking, WindowState
from orderproof.orders.view import PromptView
from orderproof.signals.registry import Progress


def rank(
    prompts: PromptView, spec: OrderSpec, progress: Progress | None = None, carried: WindowState = NOTHING
) -> Ranking:
    """Labels in the order of their first appearance: a file that is grouped already stays as it is.

    Windows carry the labels so far, so that a label has the same rank in all of them.

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
    places: dict[str | None, int] = {
        label: k for k, label in enumerate(carried.arrays.get("labels", np.empty(0)).tolist())
    }
    ranks = np.fromiter((places.setdefault(label, len(places)) for label in prompts.labels), np.int64, len(prompts))
    return Ranking(ranks, keeps={"labels": np.array(list(places), np.str_)})
