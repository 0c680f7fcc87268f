"""The signal `observed`: how often each expert was used in the captured answer.

It is for jobs that run the same prompts again, and holds as far as the model gives the same answer. At temperature 0 it
does, but for differences in the last bits that another batch makes; at higher temperatures it describes one answer
among many.
"""

from __future__ import annotations

from orderproof.job.spec import OrderSpec
from orderproof.signals.captured_or_predicted import captured_or_predicted
from orderproof.signals.registry import Signal
from orderproof.signals.served_model import ServedModel


def load(spec: OrderSpec, served: ServedModel) -> Signal:
    """Rows are square roots of the decode frequencies. Raises SignalError as `captured_or_predicted`."""
    return captured_or_predicted("observed", "decode", served)
