"""A lossy routing, kept apart: measured beside the model's own, and generated with only where a person accepts it.

It is Opportunistic Expert Activation (arXiv 2511.02237): it gives tokens other experts than the model's own, so it is
another model. comparison.py measures it, report.py keeps what was measured, acceptance.py lets a batch use it.
"""

from __future__ import annotations

from orderproof.tasks.errors import OrderproofError


class LossyError(OrderproofError):
    """A lossy routing that cannot be compared or used: why, and what to do."""


def routing_named(k0: int | None) -> str:
    """How records and pages name a routing; None: the model's own. What is lossy says so first."""
    return "the model's own" if k0 is None else f"LOSSY (Opportunistic Expert Activation, k0 = {k0})"
