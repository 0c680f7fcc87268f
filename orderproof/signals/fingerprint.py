"""The signal `fingerprint`: how often each expert was used while the model read the prompt."""

from __future__ import annotations

from orderproof.job.spec import OrderSpec
from orderproof.signals.captured_or_predicted import captured_or_predicted
from orderproof.signals.registry import Signal
from orderproof.signals.served_model import ServedModel


def load(spec: OrderSpec, served: ServedModel) -> Signal:
    """Rows are square roots of the prefill frequencies. Raises SignalError as `captured_or_predicted`."""
    return captured_or_predicted("fingerprint", "prefill", served)
