"""Prompts → how often each expert was used for them, where routes were captured; for other prompts it is foretold.

In: captured routes and the predictor that was fitted on them (prediction.py), and whether the reading of a prompt is
meant or its answer. Out: one row per prompt. A prompt was captured if its id and its text are those of the capture:
another file, or another line of a stream, may use the id for something else. Knows nothing of what it is used for.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from orderproof.routing.errors import RoutingError
from orderproof.routing.routes import REMEDY, Routes, text_digest
from orderproof.signals.prediction import Part, captured_rows, features_of, predictor_of
from orderproof.signals.registry import Indices, Prompts, Signal, SignalError
from orderproof.signals.served_model import ServedModel

_log = logging.getLogger(__name__)


def captured_or_predicted(signal: str, part: Part, served: ServedModel) -> Signal:
    """Rows are square roots of the frequencies of every expert of every layer in one part of a request.

    Raises:
        SignalError: no routes are known, they cannot be read, or are another model's or version's.
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
    if not record.texts:
        raise SignalError(f"{served.routes} does not say of which texts its routes are. {REMEDY}")
    r2 = {"prefill": predictor.record.prefill, "decode": predictor.record.decode}[part].r2
    _log.info("the routes of %d prompts are known; those of others are foretold (held-out R² %.2f)", len(captured), r2)

    others: list[str] = []  # first of the ids that stand for other texts here

    def known(prompts: Prompts, i: int) -> NDArray[np.float32] | None:
        prompt_id = prompts.ids[i]
        if prompt_id not in captured:
            return None
        if record.texts.get(prompt_id) == text_digest(prompts.text(i)):
            return captured[prompt_id]
        if not others:
            others.append(prompt_id)
            _log.warning(
                "prompt %r has the id of a captured one and another text, or is rendered otherwise: its experts are "
                "foretold, and so are those of others like it",
                prompt_id,
            )
        return None

    def rows(prompts: Prompts, places: Indices) -> NDArray[np.float32]:
        made = np.empty((len(places), predictor.weights[part].shape[1]), np.float32)
        own = [known(prompts, int(i)) for i in places]
        for row, real in zip(made, own, strict=True):
            if real is not None:
                row[:] = real
        unknown = np.array([real is None for real in own], bool)
        if unknown.any():
            features = features_of(predictor, prompts, np.asarray(places)[unknown], served)
            made[unknown] = predictor.roots(features, part)
        return made

    return rows
