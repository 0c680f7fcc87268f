"""The order that a lossy routing is measured in, and used in: the promoted one, where one is.

In: a job, its prompts and their md5. Out: an order, or a `LossyError` where the promoted one is of other prompts. Knows
nothing of engines or scores.
"""

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
    """The promoted order; None: none is.

    Raises:
        LossyError: it was promoted for another version of the prompts. Applied to these it is an order that no trial
            has measured, and maybe one that is not made before the prompts are sent.
        PromotionError: the promotion's record cannot be read.
    """
    promotion = read_promotion(job)
    if promotion is None or not promotion.promoted:
        return None
    if promotion.order.dataset_md5 != dataset_md5:
        raise LossyError(
            f"the promoted order is of another version of {job.prompts}, and a lossy routing goes with an order of "
            f"these very prompts: `orderproof measure {job.name}`, or `orderproof demote {job.name}`"
        )
    return promotion.order


def order_to_compare(job: Job, prompts: TokenizedPrompts, dataset_md5: str) -> Order:
    """The promoted order, since it is what runs, whatever params.yaml asks now; the job's candidate where none is.

    Raises:
        LossyError, PromotionError: as `promoted_for`.
        OrderError: the order cannot be read or made.
    """
    if promoted_for(job, dataset_md5):
        return current_order(job, dataset_md5, prompts.ids)
    return make_order(job.order, view_of(prompts, ServedModel.of_job(job)), dataset_md5)
