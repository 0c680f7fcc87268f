"""predictor.npz: a fitted predictor as plain arrays and a JSON record, beside the routes it was fitted on."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from orderproof.job.files import atomic_file
from orderproof.job.model import fingerprint
from orderproof.routing.routes import Routes
from orderproof.signals.nystroem import Landmarks
from orderproof.signals.predictor import Fitted, Part, Predictor, Record, fit
from orderproof.signals.registry import Prompts, SignalError
from orderproof.signals.served_model import ServedModel, predictor_path

FORMAT = "orderproof/predictor/2"
REMEDY = "Make it again with `orderproof capture JOB`"


def fit_and_write(prompts: Prompts, routes: Path, served: ServedModel) -> Record:
    """Fit a predictor and write it beside its routes; an earlier one is removed first, even if fitting fails.

    Raises:
        SignalError: as `fit`.
    """
    predictor_path(routes).unlink(missing_ok=True)
    with Routes(routes) as captured:
        predictor = fit(prompts, captured, served)
    write_predictor(predictor_path(routes), predictor)
    return predictor.record


def write_predictor(path: Path, predictor: Predictor) -> None:
    """Write it atomically."""
    record = json.dumps({"format": FORMAT, **asdict(predictor.record)})
    with atomic_file(path) as sink:
        np.savez(
            sink,
            allow_pickle=False,
            record=np.array(record),
            lexical=predictor.lexical,
            landmarks=predictor.landmarks.rows,
            gamma=np.array(predictor.landmarks.gamma),
            basis=predictor.landmarks.basis,
            **predictor.weights,
        )


def read_predictor(path: Path, model: Path) -> Predictor:
    """Read a predictor that must be for this model.

    Raises:
        SignalError: it is missing, damaged, or for another model.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            fields = json.loads(str(file["record"]))
            if fields.pop("format") != FORMAT:
                raise ValueError("another version of the format")
            parts: dict[str, Any] = {part: Fitted(**fields.pop(part)) for part in ("prefill", "decode")}
            record = Record(**fields, **parts)
            weights: dict[Part, NDArray[np.float32]] = {"prefill": file["prefill"], "decode": file["decode"]}
            landmarks = Landmarks(file["landmarks"], float(file["gamma"]), file["basis"])
            predictor = Predictor(record, file["lexical"], landmarks, weights)
    except FileNotFoundError:
        raise SignalError(f"{path} does not exist: `orderproof capture JOB` makes it, beside the routes") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:  # what a damaged file raises
        raise SignalError(f"{path} cannot be read as a predictor: {error}. {REMEDY}") from None
    if record.model != (found := fingerprint(model)):
        raise SignalError(
            f"{path} was fitted on another model's routes (fingerprint {record.model[:12]}; {model} has {found[:12]}). "
            f"{REMEDY}"
        )
    return predictor


def predictor_of(served: ServedModel, signal: str) -> Predictor:
    """The predictor beside a model's routes; read again only if it has changed.

    Raises:
        SignalError: the model or its routes are not known, or as `read_predictor`.
    """
    if served.model is None or served.routes is None:
        raise SignalError(
            f"the signal {signal!r} needs captured routes: use it in a job of params.yaml after `orderproof capture "
            "JOB`, or give --model FOLDER --routes FILE. `lexical` and `token` need no routes"
        )
    return _read(predictor_path(served.routes), served.model, served.capture_version())


@functools.lru_cache(maxsize=1)  # each window asks for it
def _read(path: Path, model: Path, version: object) -> Predictor:
    return read_predictor(path, model)
