"""Prompts → how often each expert was used while the prompt was read: the router's own view of it.

In: captured routes; for prompts that were not captured, the predictor that was fitted on them (prediction.py) foretells
the same figures. Out: one row per prompt. Knows nothing of what it is used for.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from orderproof.tasks.jobs import OrderSpec
from orderproof.tasks.routing import RoutingError
from orderproof.tasks.routing.routes import Routes
from orderproof.tasks.signals import Places, Prompts, Signal, SignalError
from orderproof.tasks.signals.prediction import captured_rows, cheap_features, predictor_of
from orderproof.tasks.signals.served import Served

logger = logging.getLogger(__name__)


def load(spec: OrderSpec, served: Served) -> Signal:
    """Rows are square roots of the prefill frequencies of every expert of every layer.

    Raises:
        SignalError: no routes are known, they cannot be read, or they are another model's.
    """
    predictor = predictor_of(served, "fingerprint")
    assert served.routes is not None
    try:
        with Routes(served.routes) as routes:
            same = (routes.record.model, routes.record.dataset_md5) == (
                predictor.record.model,
                predictor.record.dataset_md5,
            )
            captured = captured_rows(routes, "prefill")
    except RoutingError as error:
        raise SignalError(str(error)) from None
    if not same:
        raise SignalError(
            f"{served.routes} and the predictor beside it are of different models or prompts. Make both again with "
            "`orderproof capture JOB`"
        )
    logger.info(
        "the routes of %d prompts are known; those of others are foretold (held-out R² %.2f)",
        len(captured),
        predictor.record.prefill.r2,
    )

    def rows(prompts: Prompts, places: Places) -> NDArray[np.float32]:
        made = np.empty((len(places), predictor.weights["prefill"].shape[1]), np.float32)
        known = [captured.get(prompts.ids[int(i)]) for i in places]
        for row, own in zip(made, known, strict=True):
            if own is not None:
                row[:] = own
        unknown = np.array([own is None for own in known], bool)
        if unknown.any():
            features = cheap_features(predictor, prompts, np.asarray(places)[unknown], served)
            made[unknown] = predictor.roots(features, "prefill")
        return made

    return rows
