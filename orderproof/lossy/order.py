"""The order in which a lossy routing is measured and used: the promoted one if there is one."""

from __future__ import annotations

from orderproof.job.spec import Job
from orderproof.lossy.routing import LossyError
from orderproof.orders.order import Order
from orderproof.orders.order_record import OrderRecord
from orderproof.orders.registry import make_order
from orderproof.orders.view import view_of
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.runs.promotion import current_order, read_promotion
from orderproof.signals.served_model import ServedModel


def promoted_for(job: Job, dataset_md5: str) -> OrderRecord | None:
    """The promoted order; None if no order is promoted.

    Raises:
        LossyError: it was promoted for another version of the prompts, so no trial measured it on these.
        PromotionError: the promotion's record cannot be read.
    """
    promotion = read_promotion(job)
    if promotion is None or not promotion.promoted:
        return None
    if promotion.order.dataset_md5 != dataset_md5:
        raise LossyError(
            f"the promoted order is for another version of {job.prompts_name}, and a lossy routing needs an "
            f"order of the current prompts. Run `orderproof measure {job.name}` or `orderproof demote {job.name}`"
        )
    return promotion.order


def order_to_compare(job: Job, prompts: TokenizedPrompts, dataset_md5: str) -> Order:
    """The promoted order, because `generate` uses it; the candidate order of params.yaml if none is promoted.

    Raises:
        LossyError, PromotionError: as `promoted_for`.
        OrderError: the order cannot be read or computed.
    """
    if promoted_for(job, dataset_md5):
        return current_order(job, dataset_md5, prompts.ids)
    return make_order(job.order, view_of(prompts, ServedModel.of_job(job)), dataset_md5)
