"""Prompts → how often each expert was used for them, where routes were captured; for other prompts it is foretold.

In: captured routes and the predictor that was fitted on them (prediction.py), and whether the reading of a prompt is
meant or its answer. Out: one row per prompt. Knows nothing of what it is used for.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from orderproof.tasks.routing import RoutingError
from orderproof.tasks.routing.routes import Routes
from orderproof.tasks.signals import Places, Prompts, Signal, SignalError
from orderproof.tasks.signals.prediction import Part, captured_rows, cheap_features, predictor_of
from orderproof.tasks.signals.served import Served

_log = logging.getLogger(__name__)


def known_or_foretold(signal: str, part: Part, served: Served) -> Signal:
    """Rows are square roots of the frequencies of every expert of every layer in one part of a request.

    Raises:
        SignalError: no routes are known, they cannot be read, or they are another model's.
    """
    predictor = predictor_of(served, signal)
    assert served.routes is not None
    try:
        with Routes(served.routes) as routes:
            record, captured = routes.record, captured_rows(routes, part)
    except RoutingError as error:
        raise SignalError(str(error)) from None
    if (record.model, record.dataset_md5) != (predictor.record.model, predictor.record.dataset_md5):
        raise SignalError(
            f"{served.routes} and the predictor beside it are of different models or prompts. Make both again with "
            "`orderproof capture JOB`"
        )
    r2 = {"prefill": predictor.record.prefill, "decode": predictor.record.decode}[part].r2
    _log.info("the routes of %d prompts are known; those of others are foretold (held-out R² %.2f)", len(captured), r2)

    def rows(prompts: Prompts, places: Places) -> NDArray[np.float32]:
        made = np.empty((len(places), predictor.weights[part].shape[1]), np.float32)
        own = [captured.get(prompts.ids[int(i)]) for i in places]
        for row, known in zip(made, own, strict=True):
            if known is not None:
                row[:] = known
        unknown = np.array([known is None for known in own], bool)
        if unknown.any():
            features = cheap_features(predictor, prompts, np.asarray(places)[unknown], served)
            made[unknown] = predictor.roots(features, part)
        return made

    return rows
