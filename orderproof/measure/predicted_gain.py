"""What the last `orderproof plan` predicted for the order that a trial is about to measure."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from orderproof.job.model import ModelFacts
from orderproof.job.redaction import recorded_args, same_settings
from orderproof.job.spec import Job, OrderSpec
from orderproof.runs.run_store import RunError, newest_run


class PredictedGain(BaseModel):
    """A predicted gain over shuffled, with its interval; fractions."""

    model_config = ConfigDict(frozen=True)

    gain: float
    low: float
    high: float
    # Of the job's prompts. Below 1 their groups were thinner than the file's, and the prediction is too low.
    captured_share: float = 1.0


class PredictedOrders(BaseModel):
    """The part of a plan's record that a trial reads. It lies in the record's `details` under `predicted`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    args: dict[str, object]  # of the engine whose steps were timed
    replicas: int
    captured_share: float
    orders: tuple[PredictedOrder, ...]


class PredictedOrder(BaseModel):
    """One order of a plan."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: OrderSpec
    gain: float
    low: float
    high: float


PredictedOrders.model_rebuild()


def predicted_gain(job: Job, model: ModelFacts, dataset_md5: str) -> PredictedGain | None:
    """The prediction for the job's own order; None: the last plan had other prompts, model, settings or orders.

    A prediction of something else refuses nothing.
    """
    try:
        plan = newest_run(job, "plan")
    except RunError:
        return None
    if plan is None or not plan.details.get("predicted"):
        return None
    basis = plan.basis
    if (basis.dataset_md5, basis.model_fingerprint, basis.sampling) != (dataset_md5, model.fingerprint, job.sampling):
        return None
    try:
        predicted = PredictedOrders.model_validate(plan.details["predicted"])
    except ValidationError:
        return None
    if predicted.replicas != job.engine.replicas or not same_settings(predicted.args, recorded_args(job)):
        return None
    own = next((order for order in predicted.orders if order.spec == job.order), None)
    if own is None:
        return None
    return PredictedGain(gain=own.gain, low=own.low, high=own.high, captured_share=predicted.captured_share)
