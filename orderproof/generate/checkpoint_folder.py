"""What an unfinished job's results depend on, and whether a later run resumes: the folder data/<job>/outputs.partial.

    key.json       everything that decides an output; results of another key are never mixed with these
    order.i8       the order of sending, little-endian int64
    results.jsonl  the results

results_file.py reads and writes the results.
"""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.job.errors import OrderproofError
from orderproof.job.files import sync_folder, write_atomically
from orderproof.job.output_key import differences
from orderproof.orders.order import Order
from orderproof.orders.order_record import OrderRecord

FOLDER = "outputs.partial"
KEY_FILE, ORDER_FILE, RESULTS_FILE = "key.json", "order.i8", "results.jsonl"


class CheckpointError(OrderproofError):
    """A checkpoint that cannot be used or written: why, what is kept, and what to do."""


def cannot_write(folder: Path, error: OSError) -> CheckpointError:
    """The message where a folder that may hold results cannot be read or written."""
    return CheckpointError(
        f"{folder} cannot be written: {error.strerror or error}. All results so far are kept there. Fix this, then run "
        "the job again to resume"
    )


def prepare_folder(
    folder: Path,
    key: Mapping[str, Any],
    sent: NDArray[np.int64],
    *,
    known_at_end: Sequence[str] = (),
    restart: bool = False,
) -> None:
    """Make a checkpoint's folder, or check that the one there has this key.

    Args:
        key: as JSON holds it.
        sent: int64[N]: the order of sending of a new checkpoint, as far as it is known.
        known_at_end: parts of the key that a checkpoint gets only when its order is whole.
        restart: begin again; what is there is moved aside and never deleted.

    Raises:
        CheckpointError: the checkpoint there has another key (the differences are named), or cannot be written.
    """
    key = json.loads(json.dumps(key))
    shutil.rmtree(_finished_name(folder), ignore_errors=True)  # a crash after a job's end left it
    try:
        if folder.exists() and not _is_empty(folder):
            if restart:
                folder.rename(_name_aside(folder))
            else:
                _check_key(folder, key, known_at_end)
        if not (folder / KEY_FILE).exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / ORDER_FILE, sent.astype("<i8").tobytes())
            write_key(folder, key)
            sync_folder(folder.parent)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error.strerror}. Nothing was sent") from None


def write_key(folder: Path, key: Mapping[str, Any]) -> None:
    """Write what all results in the folder depend on."""
    write_atomically(folder / KEY_FILE, json.dumps(key, ensure_ascii=False, indent=1) + "\n")


def read_key(folder: Path) -> dict[str, Any] | None:
    """What the results in a folder depend on; None: there is no readable key."""
    try:
        key = json.loads((folder / KEY_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return key if isinstance(key, dict) else None


def read_order(folder: Path) -> Order | None:
    """The order of a checkpoint, so that a resumed run need not make it again; None: there is no whole one."""
    try:
        record = OrderRecord.model_validate(json.loads((folder / KEY_FILE).read_bytes())["order"])
        permutation = np.fromfile(folder / ORDER_FILE, "<i8").astype(np.int64)
        order = Order(permutation, record.method, record.parameters, record.seeds, record.dataset_md5)
    except (OSError, ValueError, KeyError, TypeError, OrderproofError):
        return None
    return order if order.sha256 == record.sha256 else None


def count_prompts(folder: Path) -> int | None:
    """Prompts of a checkpoint; of a stream, those that have an order so far. None: no checkpoint."""
    key = read_key(folder)
    if key is None:
        return None
    if "prompts" in key:
        return int(key["prompts"])
    order = folder / ORDER_FILE
    return order.stat().st_size // 8 if order.exists() else 0


def remove_folder(folder: Path) -> None:
    """Remove a checkpoint whose results are durable elsewhere: renamed first, so that half of one is never found.

    Raises:
        CheckpointError: it cannot be renamed.
    """
    finished = _finished_name(folder)
    shutil.rmtree(finished, ignore_errors=True)
    try:
        folder.replace(finished)
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be removed: {error.strerror}. The outputs and the run's record are complete. Remove the "
            "folder by hand"
        ) from None
    shutil.rmtree(finished, ignore_errors=True)


def _finished_name(folder: Path) -> Path:
    """The name of a checkpoint's folder while it is removed."""
    return folder.with_name(f"{folder.name}.finished")


def _check_key(folder: Path, key: Mapping[str, Any], known_at_end: Sequence[str]) -> None:
    remedy = (
        "Restore that and run the job again to resume; or use --restart to begin again: the results are moved aside"
    )
    existing = read_key(folder)
    if existing is None:
        raise CheckpointError(f"{folder} has results but no readable {KEY_FILE}, so their origin is unknown. {remedy}")
    comparable = {name: part for name, part in existing.items() if name in key or name not in known_at_end}
    if changed := differences(comparable, key):
        raise CheckpointError(
            f"{folder} is a checkpoint with other settings or inputs, and results are never mixed. Changed: "
            f"{'; '.join(changed)}. {remedy}"
        )


def _is_empty(folder: Path) -> bool:
    """A crash between the folder's creation and its first result: nothing in it is worth keeping."""
    results = folder / RESULTS_FILE
    return not (folder / KEY_FILE).exists() and not (results.exists() and results.stat().st_size)


def _name_aside(folder: Path) -> Path:
    now = datetime.datetime.now(datetime.UTC)
    return folder.with_name(f"{folder.name}.{now:%Y%m%dT%H%M%S}.{now.microsecond:06d}Z")
