"""The method `length`: longest prompt first."""

from __future__ import annotations

from orderproof.job.spec import OrderSpec
from orderproof.orders.ranking import FIRST_WINDOW, Ranking, WindowState
from orderproof.orders.view import PromptView


def rank(prompts: PromptView, spec: OrderSpec, state: WindowState = FIRST_WINDOW) -> Ranking:
    """Longest first, in tokens if they are counted, otherwise in characters.

    A prompt that is too long for the memory then fails in the first minute and not in the last, and long requests do
    not run alone at the end (Graham's longest processing time first).
    """
    lengths, unit = prompts.lengths()
    return Ranking(-lengths, {"unit": unit})
