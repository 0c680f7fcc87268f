"""The order of a job: the promoted one, the promoted way to order applied to new prompts, or the file's own.

It makes no list of ids, so that a million prompts fit in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orderproof.job.spec import Job, OrderSpec
from orderproof.orders.order import Order
from orderproof.orders.order_record import OrderRecord
from orderproof.orders.order_table import read_order
from orderproof.orders.registry import make_order
from orderproof.orders.view import PromptView, view_of_source
from orderproof.prompts.source import PromptSource
from orderproof.prompts.tokenization import Tokenizer
from orderproof.runs import route_artifacts
from orderproof.runs.promotion import ORDER_FILE, read_promotion
from orderproof.signals.registry import ROUTING_SIGNALS
from orderproof.signals.served_model import ServedModel

STREAM_BATCHES = 8  # in a window of a stream whose promoted order has none


@dataclass(frozen=True)
class WindowedOrder:
    """An order that is made window by window while the prompts are sent."""

    spec: OrderSpec  # with a window
    in_tokens: bool = False  # lengths are counted in tokens, otherwise in characters


def select_order(
    job: Job, source: PromptSource, tokenizer: Callable[[], Tokenizer], unfinished: Order | None = None
) -> tuple[Order | WindowedOrder, str]:
    """The order in which the whole job is sent, and why. A promoted window is applied to new prompts during sending.

    Args:
        tokenizer: called only where an order has to be made.
        unfinished: the order of an unfinished run, used where making it again would give the same one.

    Raises:
        OrderError: the promoted order cannot be read, or its way to order does not fit these prompts.
        PromotionError: the promotion's record cannot be read.
    """
    promotion = read_promotion(job)
    if promotion is None or not promotion.promoted:
        return Order(np.arange(len(source)), "file", {}, {}, source.md5), "the file's own order: none is promoted"
    record = promotion.order
    if record.dataset_md5 == source.md5:
        order = read_order(job.data_dir / ORDER_FILE, record, source.places, len(source))
        return order, f"promoted by trial {promotion.trial}"
    why = f"the promoted way to order ({record.method}, trial {promotion.trial}), made for this version of the prompts"
    if (spec := _restore_spec(job, record)).window:
        return WindowedOrder(spec, _in_tokens(record)), why
    wanted = record.model_copy(update={"dataset_md5": source.md5})
    if unfinished is not None and _made_alike(unfinished.record(), wanted):
        return unfinished, why
    return make_order(spec, _view(job, source, record, tokenizer()), source.md5), why


def select_stream_order(job: Job) -> tuple[WindowedOrder, str]:
    """How the prompts of a stream are ordered, and why.

    A promoted order without a window gets one of STREAM_BATCHES batches, because a stream's end cannot be waited for.

    Raises:
        PromotionError: the promotion's record cannot be read.
    """
    promotion, batch = read_promotion(job), max(2, job.engine.max_num_seqs)
    if promotion is None or not promotion.promoted:
        return WindowedOrder(OrderSpec(method="file", window=batch)), "the stream's own order: none is promoted"
    spec = _restore_spec(job, promotion.order)
    window = spec.window or STREAM_BATCHES * batch
    why = f"the promoted way to order ({spec.method}, trial {promotion.trial}), in windows of {window} prompts"
    return WindowedOrder(spec.model_copy(update={"window": window}), _in_tokens(promotion.order)), why


def _restore_spec(job: Job, record: OrderRecord) -> OrderSpec:
    """The spec that orders other prompts in the same way; the routes that it needs are restored where missing."""
    if record.parameters.get("signal") in ROUTING_SIGNALS:
        route_artifacts.restore_routes(job)
    return record.spec()


def _view(job: Job, source: PromptSource, record: OrderRecord, tokenizer: Tokenizer) -> PromptView:
    return view_of_source(
        source, tokenizer, labels=record.method == "label", lengths=_in_tokens(record), served=ServedModel.of_job(job)
    )


def _in_tokens(record: OrderRecord) -> bool:
    if record.method == "length":
        return record.parameters.get("unit") == "tokens"
    return "batched_tokens" in record.parameters


def _made_alike(order: OrderRecord, other: OrderRecord) -> bool:
    return order.model_copy(update={"sha256": other.sha256}) == other
