"""Keep the captured routes of an order with its trial, and restore them in a clone that lacks them.

The trial's folder is a DVC output, so `dvc pull --with-deps generate@JOB` also brings the routes, the fitted predictor
and the step costs, and another machine can order new prompts in the same way. A failed copy is only a warning.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from orderproof.job.files import atomic_file
from orderproof.job.model import fingerprint
from orderproof.job.spec import Job
from orderproof.orders.order import Order
from orderproof.routing.errors import RoutingError
from orderproof.routing.routes import Routes
from orderproof.runs.promotion import read_promotion
from orderproof.signals.registry import ROUTING_SIGNALS
from orderproof.signals.served_model import COSTS_FILE, PREDICTOR_FILE, ROUTES_FILE

FOLDER = "captured"  # in a trial's folder
FILES = (
    PREDICTOR_FILE,
    COSTS_FILE,
    ROUTES_FILE,
)  # the routes come last: their presence shows that the copy is complete

_log = logging.getLogger(__name__)


def keep(job: Job, order: Order, trial: Path) -> None:
    """Copy what an order was made from into its trial's folder; does nothing for an order made without routes."""
    if order.parameters.get("signal") in ROUTING_SIGNALS:
        try:
            _copy(job.data_dir, trial / FOLDER)
        except OSError as error:
            _log.warning(
                "%s: the captured routes are not copied, so a clone will lack them: %s: %s",
                job.name,
                trial / FOLDER,
                error.strerror,
            )


def restore_routes(job: Job, dataset_md5: str | None = None) -> Path | None:
    """Restore captured routes that are missing in data/<job>: from the trial of the promoted order, or else from the
    newest trial that kept routes of the current model.

    Args:
        dataset_md5: accept only routes of these prompts; None: of any prompts.

    Returns:
        The folder that they were copied from; None: nothing was restored.
    """
    if (job.data_dir / ROUTES_FILE).exists():
        return None
    promotion = read_promotion(job)
    # newest first: trials are named by their time
    folders = sorted(job.paths.verb_dir("measure").glob(f"*/{FOLDER}"), reverse=True)
    if promotion and promotion.promoted:
        folders.insert(0, job.paths.run_dir("measure", str(promotion.trial)) / FOLDER)
    model = cache(partial(fingerprint, job.model_path))  # reads files, and is needed for each folder
    try:
        folder = next((path for path in folders if _fits(path / ROUTES_FILE, model, dataset_md5)), None)
        if folder is not None:
            _copy(folder, job.data_dir)
            _log.info("%s: captured routes were restored from %s", job.name, folder)
    except OSError as error:
        _log.warning("%s: captured routes could not be restored: %s", job.name, error)
        return None
    return folder


def _fits(path: Path, model: Callable[[], str], dataset_md5: str | None) -> bool:
    try:
        with Routes(path) as routes:
            record = routes.record
    except RoutingError:  # missing or not readable
        return False
    return dataset_md5 in (None, record.dataset_md5) and record.model == model()


def _copy(source: Path, target: Path) -> None:
    for name in FILES:
        if (source / name).exists():  # a capture may have no costs
            with (source / name).open("rb") as file, atomic_file(target / name) as sink:
                shutil.copyfileobj(file, sink)
