"""Prompts → how often each expert was used while the prompt was read: the router's own view of it.

In: captured routes; of prompts that were not captured it is foretold. Out: one row per prompt. Knows nothing of what it
is used for.
"""

from __future__ import annotations

from orderproof.job.spec import OrderSpec
from orderproof.signals.captured_or_predicted import known_or_foretold
from orderproof.signals.registry import Signal
from orderproof.signals.served_model import Served


def load(spec: OrderSpec, served: Served) -> Signal:
    """Rows are square roots of the prefill frequencies. Raises SignalError as `known_or_foretold`."""
    return known_or_foretold("fingerprint", "prefill", served)
