"""Lossy routing: its name, its error and the check of k0.

It is Opportunistic Expert Activation (arXiv 2511.02237). It gives tokens other experts than the model's own, so it is a
different model: it is only measured, never promoted, and used only if a person accepts it.
"""

from __future__ import annotations

from orderproof.job.errors import OrderproofError
from orderproof.job.model import ModelFacts


class LossyError(OrderproofError):
    """A lossy routing cannot be compared or used. The message says why, and what to do."""


def routing_name(k0: int | None) -> str:
    """The name of a routing in records and pages; None: the model's own. A lossy one begins with "LOSSY"."""
    return "the model's own" if k0 is None else f"LOSSY (Opportunistic Expert Activation, k0 = {k0})"


def refuse_k0(model: ModelFacts, k0: int) -> int:
    """Return the model's top_k. Raises LossyError if `k0` is not valid for the model."""
    if model.moe is None:
        raise LossyError(f"{model.path} ({model.architecture}) is a dense model, so it has no routing to change")
    if not 1 <= k0 < model.moe.top_k:
        raise LossyError(
            f"k0 = {k0} is not valid for {model.path}: a token uses {model.moe.top_k} experts there. Use 1 to "
            f"{model.moe.top_k - 1}"
        )
    return model.moe.top_k
