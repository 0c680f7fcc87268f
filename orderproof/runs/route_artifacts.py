"""What an order by routes was made from, kept with its trial, and put back where a clone lacks it.

In: a job, and the order that a trial measures. Out: copies of the captured routes, of the predictor that was fitted on
them and of the costs of a step, in the trial's folder: DVC has that folder, so `dvc pull --with-deps generate@JOB`
brings them too, and another machine can order new prompts in the same way. A copy that fails is a warning: the trial
stands without it. Knows nothing of DVC itself.
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

FOLDER = "captured"  # of a trial's folder
FILES = (PREDICTOR_FILE, COSTS_FILE, ROUTES_FILE)  # last the one that is looked for

_log = logging.getLogger(__name__)


def keep(job: Job, order: Order, trial: Path) -> None:
    """Copy what an order was made from into its trial's folder; nothing, where it was made without routes."""
    if order.parameters.get("signal") in ROUTING_SIGNALS:
        try:
            _copy(job.data_dir, trial / FOLDER)
        except OSError as error:
            _log.warning("%s: a clone will lack the captured routes: %s: %s", job.name, trial / FOLDER, error.strerror)


def restore_routes(job: Job, dataset_md5: str | None = None) -> Path | None:
    """Where no routes lie beside a job's prompts, put back those of the promoted order's trial, or of the newest one
    that kept some of the model as it is now.

    Args:
        dataset_md5: of the only prompts of which they may be; None: of any.

    Returns:
        The folder that they came from; None: nothing was done.
    """
    if (job.data_dir / ROUTES_FILE).exists():
        return None
    pinned = read_promotion(job)
    kept = sorted(job.reports_dir.glob(f"*/{FOLDER}"), reverse=True)  # newest first: trials are named by their time
    if pinned and pinned.promoted:
        kept.insert(0, job.reports_dir / str(pinned.trial) / FOLDER)
    model = cache(partial(fingerprint, job.model_path))  # reads files, and is asked for each folder
    try:
        folder = next((one for one in kept if _fits(one / ROUTES_FILE, model, dataset_md5)), None)
        if folder is not None:
            _copy(folder, job.data_dir)
            _log.info("%s: captured routes were put back from %s", job.name, folder)
    except OSError as error:
        _log.warning("%s: captured routes could not be put back: %s", job.name, error)
        return None
    return folder


def _fits(path: Path, model: Callable[[], str], dataset_md5: str | None) -> bool:
    try:
        with Routes(path) as routes:
            record = routes.record
    except RoutingError:  # there are none, or none that can be read
        return False
    return dataset_md5 in (None, record.dataset_md5) and record.model == model()


def _copy(source: Path, target: Path) -> None:
    for name in FILES:
        if (source / name).exists():  # a capture may have left out the costs
            with (source / name).open("rb") as file, atomic_file(target / name) as sink:
                shutil.copyfileobj(file, sink)
