"""The order beside its dataset: data/<job>/order.parquet and its record data/<job>/order.json.

In: a job, a trial, its verdict, and the order that was tried. Out: the two files, and the `Promotion` that the record
holds. Knows nothing of engines, MLflow, DVC or how a verdict is reached; it only refuses what no verdict carries.

order.parquet is written first and order.json, which holds its md5, last: a pair that a crash has torn does not match,
and is no promotion.
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
from orderproof.measure.trial_store import Trial
from orderproof.measure.verdict import Verdict
from orderproof.orders.order import Order
from orderproof.orders.order_record import OrderRecord
from orderproof.orders.order_table import find_among, read_order, write_order
from orderproof.outputs.passes import CANDIDATE
from orderproof.runs.promotion_record import Demotion, Promotion, provenance

__all__ = ["Promotion", "PromotionError", "current_order", "demote", "keep_current", "promote", "read_promotion"]

ORDER_FILE, RECORD_FILE = "order.parquet", "order.json"

_log = logging.getLogger(__name__)


class PromotionError(OrderproofError):
    """An order that must not be promoted, or a record that cannot be trusted: why, and what to do."""


def promote(
    job: Job, trial: Trial, verdict: Verdict, order: Order, ids: Sequence[str], mlflow_run: str | None = None
) -> Promotion:
    """Make `order` the job's chosen order. Promoting it again for the same trial leaves the files as they are.

    Args:
        order: over the whole file, also where the trial measured a sample of it.
        ids: the prompts' ids in the file's order.

    Raises:
        PromotionError: a placebo, any verdict but `promote`, an order that the trial did not try, or a dataset that is
            not the one that was measured. Nothing is written.
    """
    if verdict.verdict != "promote":
        raise PromotionError(
            f"{job.name}: the verdict is {verdict.verdict!r} ({verdict.reason}), so no order is promoted"
        )
    _refuse_foreign(job, trial)
    _refuse_untried(job, trial, order, ids)
    return _write(job, order, ids, promoted=True, **provenance(trial, verdict, mlflow_run))


def keep_current(
    job: Job,
    dataset_md5: str,
    ids: Sequence[str],
    trial: Trial | None = None,
    verdict: Verdict | None = None,
    mlflow_run: str | None = None,
) -> Promotion:
    """Leave the job in its current order, and have the files say so.

    An earlier promotion that fits the dataset stays byte for byte; otherwise the files hold the file's own order.

    Args:
        trial: the one that promoted nothing; None when the plan refused before any.

    Raises:
        PromotionError: a placebo, or a dataset that is not the one that was measured. Nothing is written.
    """
    if trial is not None:
        _refuse_foreign(job, trial)
    _refuse_changed(job, dataset_md5)
    earlier = read_promotion(job)
    if earlier and earlier.promoted and _fitting_order(job, earlier, dataset_md5, ids):
        return earlier
    demoted = earlier.demoted if earlier and earlier.order.dataset_md5 == dataset_md5 else None
    return _write(
        job,
        _file_order(dataset_md5, ids),
        ids,
        promoted=False,
        demoted=demoted,
        **provenance(trial, verdict, mlflow_run),
    )


def demote(job: Job, ids: Sequence[str], reason: str = "") -> Promotion:
    """Go back to the file's own order. The trial's folder stays; the record says what was taken back, and when.

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
    """The record of the job's chosen order; None, with a warning in the log, where the two files are no pair.

    Raises:
        PromotionError: order.json is not such a record.
    """
    record, table = job.data_dir / RECORD_FILE, job.data_dir / ORDER_FILE
    present = [path.name for path in (table, record) if path.exists()]
    if not present:
        return None
    if len(present) == 1:
        _warn_torn(job, f"only {present[0]} is there")
        return None
    try:
        promotion = Promotion.model_validate_json(record.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise PromotionError(
            f"{record} is not the record of an order ({place}: {first['msg']}): restore it with `dvc checkout`, or "
            "delete it to go back to the file's order"
        ) from None
    except OSError as error:
        raise PromotionError(f"{record} cannot be read: {error.strerror}. Restore it with `dvc checkout`") from None
    if promotion.order_md5 != md5_of(table):
        _warn_torn(job, f"{ORDER_FILE} is not the one that {RECORD_FILE} tells of")
        return None
    return promotion


def current_order(job: Job, dataset_md5: str, ids: Sequence[str]) -> Order:
    """The order in which the job runs today: the promoted one if it fits this dataset, otherwise the file's."""
    promotion = read_promotion(job)
    if promotion and promotion.promoted:
        order = _fitting_order(job, promotion, dataset_md5, ids)
        if order is not None:
            return order
    return _file_order(dataset_md5, ids)


def _refuse_foreign(job: Job, trial: Trial) -> None:
    manifest = trial.manifest
    if manifest.placebo:
        raise PromotionError(f"trial {manifest.trial} is a placebo: whatever its verdict, it decides no job's order")
    if manifest.job != job.name:
        raise PromotionError(f"trial {manifest.trial} is of the job {manifest.job!r}, not of {job.name!r}")
    _refuse_changed(job, manifest.dataset_md5)


def _refuse_changed(job: Job, measured_md5: str) -> None:
    now = _dataset_md5(job)
    if now != measured_md5:
        raise PromotionError(
            f"{job.prompts} is not the file that was measured (md5 {measured_md5} then, {now} now), so no order was "
            "written: put it back, or measure again"
        )


def _refuse_untried(job: Job, trial: Trial, order: Order, ids: Sequence[str]) -> None:
    """The order must be of the registered making, and over the measured prompts the very one that was timed."""
    manifest, blocks = trial.manifest, trial.blocks()
    made = order.record().model_copy(update={"sha256": manifest.candidate.sha256})  # that is over the measured prompts
    if made != manifest.candidate:
        other = [name for name in OrderRecord.model_fields if getattr(made, name) != getattr(manifest.candidate, name)]
        raise PromotionError(
            f"{job.name}: the order has another {', '.join(other)} than trial {manifest.trial} registered"
        )
    if not len(order) == len(ids) == manifest.prompts_total:
        raise PromotionError(
            f"{job.name}: an order of {len(order)} for {len(ids)} prompts, of which trial {manifest.trial} "
            f"registered {manifest.prompts_total}"
        )
    if not blocks:
        raise PromotionError(f"trial {manifest.trial} has no valid block, so it promotes nothing")
    timed = trial.tokens(blocks[0].passes[CANDIDATE].pass_id, ["prompt_id"])["prompt_id"].to_pylist()
    measured = set(timed)
    if [ids[index] for index in order.permutation if ids[index] in measured] != timed:
        raise PromotionError(f"{job.name}: the {order.method} order is not the one that trial {manifest.trial} timed")


def _dataset_md5(job: Job) -> str:
    try:
        return md5_of(job.prompts_path)
    except OSError as error:
        raise PromotionError(f"{job.prompts} cannot be read ({error.strerror}), so no order was written") from None


def _write(job: Job, order: Order, ids: Sequence[str], **record: Any) -> Promotion:
    """Both files; or neither, where they tell the same already."""
    record = {"job": job.name, "order": order.record(), "prompts": len(ids), "created_utc": _now(), **record}
    earlier = read_promotion(job)
    if earlier and earlier.trial and earlier.trial == record.get("trial"):
        record["mlflow_run"] = record["mlflow_run"] or earlier.mlflow_run  # a tracker that is down now had it then
    if earlier and earlier.same_but_for_its_time(Promotion(order_md5=earlier.order_md5, **record)):
        return earlier
    write_order(job.data_dir / ORDER_FILE, order, ids)
    promotion = Promotion(order_md5=md5_of(job.data_dir / ORDER_FILE), **record)
    write_atomically(job.data_dir / RECORD_FILE, promotion.model_dump_json(indent=1) + "\n")
    return promotion


def _fitting_order(job: Job, promotion: Promotion, dataset_md5: str, ids: Sequence[str]) -> Order | None:
    """The promoted order over these prompts; None, with a warning in the log, if it was promoted for others."""
    if promotion.order.dataset_md5 == dataset_md5:
        return read_order(job.data_dir / ORDER_FILE, promotion.order, find_among(ids))
    _log.warning(
        "%s: the promoted order is of another version of %s, so the file's own order holds; measure again",
        job.name,
        job.prompts,
    )
    return None


def _file_order(dataset_md5: str, ids: Sequence[str]) -> Order:
    return Order(np.arange(len(ids), dtype=np.int64), "file", {}, {}, dataset_md5)


def _warn_torn(job: Job, what: str) -> None:
    _log.warning(
        "%s: half of a promotion lies in %s (%s), as after a crash, so the file's own order holds; measure again, or "
        "restore both files with `dvc checkout`",
        job.name,
        job.data_dir,
        what,
    )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
