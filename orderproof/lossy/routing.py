"""A lossy routing, kept apart: measured beside the model's own, and generated with only where a person accepts it.

It is Opportunistic Expert Activation (arXiv 2511.02237): it gives tokens other experts than the model's own, so it is
another model. comparison.py measures it in the order of order.py, report.py keeps what was measured, acceptance.py lets
a batch use it.
"""

from __future__ import annotations

from orderproof.job.errors import OrderproofError
from orderproof.job.model import ModelFacts


class LossyError(OrderproofError):
    """A lossy routing that cannot be compared or used: why, and what to do."""


def routing_named(k0: int | None) -> str:
    """How records and pages name a routing; None: the model's own. What is lossy says so first."""
    return "the model's own" if k0 is None else f"LOSSY (Opportunistic Expert Activation, k0 = {k0})"


def refuse_k0(model: ModelFacts, k0: int) -> int:
    """The model's top_k. Raises LossyError where `k0` of it make no sense."""
    if model.moe is None:
        raise LossyError(f"{model.path} ({model.architecture}) is a dense model: there is no routing to change")
    if not 1 <= k0 < model.moe.top_k:
        raise LossyError(
            f"k0 = {k0} makes no sense for {model.path}: a token uses {model.moe.top_k} experts there, so take 1 to "
            f"{model.moe.top_k - 1}"
        )
    return model.moe.top_k
