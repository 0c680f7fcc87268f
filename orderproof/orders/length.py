"""By the prompt's length."""

from __future__ import annotations

from orderproof.job.spec import OrderSpec
from orderproof.orders.ranking import NOTHING, Ranking, WindowState
from orderproof.orders.view import PromptView
from orderproof.signals.registry import Progress


def rank(
    prompts: PromptView, spec: OrderSpec, progress: Progress | None = None, carried: WindowState = NOTHING
) -> Ranking:
    """Longest first, in tokens where they are counted, otherwise in characters.

    Longest first, because what is too long for the memory then fails in the first minute and not in the last, and
    because long requests started last would run on in a nearly empty batch (Graham's longest processing time first).
    """
    lengths, unit = prompts.lengths()
    return Ranking(-lengths, {"unit": unit})
