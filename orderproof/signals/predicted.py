"""Prompts → how often each expert is likely to be used while answering them: foretold from what is cheap to see.

In: prompts; a predictor that was fitted on captured routes (prediction.py). Out: one row per prompt. Knows nothing of
what it is used for.
"""

from __future__ import annotations

from orderproof.job.spec import OrderSpec
from orderproof.signals.prediction import features_of, predictor_of
from orderproof.signals.registry import Signal
from orderproof.signals.served_model import ServedModel


def load(spec: OrderSpec, served: ServedModel) -> Signal:
    """Rows are square roots of the decode frequencies of every expert of every layer.

    Raises:
        SignalError: no routes are known, or the predictor is another model's.
    """
    predictor = predictor_of(served, "predicted")
    return lambda prompts, places: predictor.roots(features_of(predictor, prompts, places, served), "decode")
