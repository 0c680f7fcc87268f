"""Prompts → how often each expert was used in the answer that was captured: for jobs that run the same prompts again.

In: captured routes; of prompts that were not captured it is foretold, as by the signal `predicted`. Out: one row per
prompt. Knows nothing of what it is used for.

It is a memory and no prediction: it holds as far as the model answers a prompt again as it did. At temperature 0 it
does, but for what another batch changes in the last bits; at higher temperatures it tells what one answer used.
"""

from __future__ import annotations

from orderproof.job.spec import OrderSpec
from orderproof.signals.captured_or_predicted import captured_or_predicted
from orderproof.signals.registry import Signal
from orderproof.signals.served_model import ServedModel


def load(spec: OrderSpec, served: ServedModel) -> Signal:
    """Rows are square roots of the decode frequencies. Raises SignalError as `captured_or_predicted`."""
    return captured_or_predicted("observed", "decode", served)
