"""How often each expert is used for a prompt: as captured where its routes are known, otherwise predicted.

A prompt is a captured one if its id and its text are those of the capture, since another file or a stream may use the
id for another text.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from orderproof.routing.errors import RoutingError
from orderproof.routing.routes import REMEDY, Routes, text_digest
from orderproof.signals.predictor import Part, captured_rows, features_of
from orderproof.signals.predictor_file import predictor_of
from orderproof.signals.registry import Indices, Prompts, Signal, SignalError
from orderproof.signals.served_model import ServedModel

_log = logging.getLogger(__name__)


def captured_or_predicted(signal: str, part: Part, served: ServedModel) -> Signal:
    """Rows are square roots of the frequencies of every expert of every layer in one part of a request.

    Raises:
        SignalError: no routes are known, they cannot be read, or they are of another model or version.
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
        raise SignalError(f"{served.routes} does not say which texts its routes belong to. {REMEDY}")
    r2 = {"prefill": predictor.record.prefill, "decode": predictor.record.decode}[part].r2
    _log.info("routes of %d prompts are captured; others are predicted (held-out R² %.2f)", len(captured), r2)

    different: list[str] = []  # the first captured id that belongs to another text here

    def captured_row(prompts: Prompts, i: int) -> NDArray[np.float32] | None:
        prompt_id = prompts.ids[i]
        if prompt_id not in captured:
            return None
        if record.texts.get(prompt_id) == text_digest(prompts.text(i)):
            return captured[prompt_id]
        if not different:
            different.append(prompt_id)
            _log.warning(
                "prompt %r has the id of a captured prompt but a different text, so its experts are predicted; the "
                "same holds for other prompts like it",
                prompt_id,
            )
        return None

    def rows(prompts: Prompts, indices: Indices) -> NDArray[np.float32]:
        result = np.empty((len(indices), predictor.weights[part].shape[1]), np.float32)
        known = [captured_row(prompts, int(i)) for i in indices]
        for row, captured_values in zip(result, known, strict=True):
            if captured_values is not None:
                row[:] = captured_values
        unknown = np.array([row is None for row in known], bool)
        if unknown.any():
            features = features_of(predictor, prompts, np.asarray(indices)[unknown], served)
            result[unknown] = predictor.roots(features, part)
        return result

    return rows
