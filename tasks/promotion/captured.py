"""What an order by routes was made from, kept with its trial, and put back where a clone lacks it.

In: a job, and the order that a trial is about to measure. Out: copies of the captured routes, of the predictor that was
fitted on them and of the costs of a step, in the trial's folder: DVC has that folder, so `dvc pull --with-deps
generate@JOB` brings them too, and another machine can order new prompts in the same way. Knows nothing of DVC itself.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from orderproof.tasks.files import atomic_file
from orderproof.tasks.foresight.constants import COSTS_FILE
from orderproof.tasks.jobs import Job
from orderproof.tasks.orders import Order
from orderproof.tasks.promotion import read_promotion
from orderproof.tasks.signals import ROUTING_SIGNALS
from orderproof.tasks.signals.prediction import predictor_path
from orderproof.tasks.signals.served import ROUTES_FILE

FOLDER = "captured"  # of a trial's folder
FILES = (predictor_path(Path(ROUTES_FILE)).name, COSTS_FILE, ROUTES_FILE)  # last the one that is looked for

_log = logging.getLogger(__name__)


def keep(job: Job, order: Order, trial: Path) -> None:
    """Copy what an order was made from into its trial's folder; nothing, where it was made without routes."""
    if order.parameters.get("signal") in ROUTING_SIGNALS:
        _copy(job.data_dir, trial / FOLDER)


def bring_back(job: Job) -> Path | None:
    """Where no routes lie beside a job's prompts, put back those of the promoted order's trial, or of the newest one
    that kept some. Returns the folder that they came from; None: nothing was done."""
    if (job.data_dir / ROUTES_FILE).exists():
        return None
    pinned = read_promotion(job)
    promoted = job.reports_dir / str(pinned.trial) / FOLDER if pinned and pinned.promoted else None
    newest = max(job.reports_dir.glob(f"*/{FOLDER}"), default=None)  # trials are named by their time
    folder = promoted if promoted and promoted.exists() else newest
    if folder is not None:
        _copy(folder, job.data_dir)
        _log.info("%s: captured routes were put back from %s", job.name, folder)
    return folder


def _copy(source: Path, target: Path) -> None:
    for name in FILES:
        if (source / name).exists():  # a capture may have left out the costs
            with (source / name).open("rb") as file, atomic_file(target / name) as sink:
                shutil.copyfileobj(file, sink)
