"""The signal `predicted`: how often each expert is likely to be used in the answer, predicted from the prompt."""

from __future__ import annotations

from orderproof.job.spec import OrderSpec
from orderproof.signals.predictor import features_of
from orderproof.signals.predictor_file import predictor_of
from orderproof.signals.registry import Signal
from orderproof.signals.served_model import ServedModel


def load(spec: OrderSpec, served: ServedModel) -> Signal:
    """Rows are square roots of the decode frequencies of every expert of every layer.

    Raises:
        SignalError: no routes are known, or the predictor is for another model.
    """
    predictor = predictor_of(served, "predicted")
    return lambda prompts, indices: predictor.roots(features_of(predictor, prompts, indices, served), "decode")
