"""The job's current order: data/<job>/order.parquet and its record data/<job>/order.json.

order.json is written last and holds the md5 of order.parquet, so a crash between the two leaves files that do not
match, and those are not a promotion. measure/promote.py checks whether a trial justifies an order.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import ValidationError

from orderproof.job.errors import OrderproofError
from orderproof.job.files import write_atomically
from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job
from orderproof.orders.order import Order
from orderproof.orders.order_table import find_among, read_order, write_order
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.prompt_files import find_files
from orderproof.runs.promotion_record import Demotion, Evidence, Promotion

ORDER_FILE, RECORD_FILE = "order.parquet", "order.json"

_log = logging.getLogger(__name__)


class PromotionError(OrderproofError):
    """An order must not be promoted, or its record is damaged. The message says why, and what to do."""


def write_promotion(job: Job, order: Order, ids: Sequence[str], evidence: Evidence) -> Promotion:
    """Make `order` the job's current order. The same evidence again leaves the files unchanged.

    Args:
        order: over the whole file.
        ids: the prompts' ids in the file's order.

    Raises:
        PromotionError: the prompts changed since the measurement. Nothing is written.
    """
    refuse_changed_prompts(job, order.dataset_md5)
    return _write(job, order, ids, promoted=True, **evidence.fields())


def keep_current(job: Job, dataset_md5: str, ids: Sequence[str], evidence: Evidence) -> Promotion:
    """Keep the job's current order, and record that.

    An earlier promotion for this dataset stays unchanged; otherwise the files hold the order of the prompt file.

    Args:
        evidence: the verdict that promoted nothing.

    Raises:
        PromotionError: the prompts changed since the measurement. Nothing is written.
    """
    refuse_changed_prompts(job, dataset_md5)
    earlier = read_promotion(job)
    if earlier and earlier.promoted and _fitting_order(job, earlier, dataset_md5, ids):
        return earlier
    demoted = earlier.demoted if earlier and earlier.order.dataset_md5 == dataset_md5 else None
    order = _file_order(dataset_md5, ids)
    return _write(job, order, ids, promoted=False, demoted=demoted, **evidence.fields())


def demote(job: Job, ids: Sequence[str], reason: str = "") -> Promotion:
    """Go back to the order of the prompt file. The trial's folder stays; the record names the demoted order.

    Raises:
        PromotionError: no order is promoted.
    """
    earlier = read_promotion(job)
    if earlier is None or not earlier.promoted:
        raise PromotionError(f"{job.name}: no order is promoted, so there is nothing to demote")
    now = _now()
    demoted = Demotion(
        order=earlier.order,
        verdict=earlier.verdict,
        trial=earlier.trial,
        promoted_utc=earlier.created_utc,
        demoted_utc=now,
        reason=reason,
    )
    order = _file_order(_dataset_md5(job), ids)
    return _write(job, order, ids, promoted=False, demoted=demoted, created_utc=now)


def read_promotion(job: Job) -> Promotion | None:
    """The record of the job's current order; None, with a warning in the log, if the two files do not match.

    Raises:
        PromotionError: order.json cannot be read.
    """
    record, table = job.data_dir / RECORD_FILE, job.data_dir / ORDER_FILE
    present = [path.name for path in (table, record) if path.exists()]
    if not present:
        return None
    if len(present) == 1:
        _warn_mismatch(job, f"only {present[0]} exists")
        return None
    try:
        promotion = Promotion.model_validate_json(record.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise PromotionError(
            f"{record} is not a valid record of an order ({place}: {first['msg']}). Restore it with `dvc checkout`, or "
            "delete it to go back to the order of the prompt file"
        ) from None
    except OSError as error:
        raise PromotionError(f"{record} cannot be read: {error.strerror}. Restore it with `dvc checkout`") from None
    if promotion.order_md5 != md5_of(table):
        _warn_mismatch(job, f"{ORDER_FILE} does not have the md5 in {RECORD_FILE}")
        return None
    return promotion


def current_order(job: Job, dataset_md5: str, ids: Sequence[str]) -> Order:
    """The order in which the job runs now: the promoted order if it is for this dataset, otherwise that of the file."""
    promotion = read_promotion(job)
    if promotion and promotion.promoted:
        order = _fitting_order(job, promotion, dataset_md5, ids)
        if order is not None:
            return order
    return _file_order(dataset_md5, ids)


def refuse_changed_prompts(job: Job, measured_md5: str) -> None:
    """Raise PromotionError if the job's prompts changed since the measurement."""
    now = _dataset_md5(job)
    if now != measured_md5:
        raise PromotionError(
            f"{job.prompts_name} changed since the measurement (md5 {measured_md5}, now {now}), so no order was "
            "written. Restore the file, or measure again"
        )


def _dataset_md5(job: Job) -> str:
    try:
        return find_files(job).md5()
    except (PromptError, OSError) as error:
        raise PromotionError(f"{job.prompts_name} cannot be read ({error}). No order was written") from None


def _write(job: Job, order: Order, ids: Sequence[str], **record: Any) -> Promotion:
    """Write both files, or none if they already hold the same."""
    record = {"job": job.name, "order": order.record(), "prompts": len(ids), "created_utc": _now(), **record}
    earlier = read_promotion(job)
    if earlier and earlier.trial and earlier.trial == record.get("trial"):
        record["mlflow_run"] = record["mlflow_run"] or earlier.mlflow_run  # MLflow may be unreachable now
    if earlier and earlier.equals_except_time(Promotion(order_md5=earlier.order_md5, **record)):
        return earlier
    write_order(job.data_dir / ORDER_FILE, order, ids)
    promotion = Promotion(order_md5=md5_of(job.data_dir / ORDER_FILE), **record)
    write_atomically(job.data_dir / RECORD_FILE, promotion.model_dump_json(indent=1) + "\n")
    return promotion


def _fitting_order(job: Job, promotion: Promotion, dataset_md5: str, ids: Sequence[str]) -> Order | None:
    """The promoted order of these prompts; None, with a warning in the log, if it was promoted for other prompts."""
    if promotion.order.dataset_md5 != dataset_md5:
        why = "for another version of"
    elif promotion.prompts > len(ids):
        why = "for more rows than can be used now of"
    else:
        return read_order(job.data_dir / ORDER_FILE, promotion.order, find_among(ids), len(ids))
    _log.warning(
        "%s: the promoted order is %s %s, so the order of the file is used. Measure again",
        job.name,
        why,
        job.prompts_name,
    )
    return None


def _file_order(dataset_md5: str, ids: Sequence[str]) -> Order:
    return Order(np.arange(len(ids), dtype=np.int64), "file", {}, {}, dataset_md5)


def _warn_mismatch(job: Job, what: str) -> None:
    _log.warning(
        "%s: the promotion in %s is incomplete (%s), perhaps after a crash, so the order of the file is used. Measure "
        "again, or restore both files with `dvc checkout`",
        job.name,
        job.data_dir,
        what,
    )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
