"""Advice of a plan: whether a trial of the best candidate is worth its time, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from orderproof.forecast.prediction import Prediction, over_today
from orderproof.job.formatting import signed, with_interval
from orderproof.job.spec import Job
from orderproof.measure.verdict import Rule

if TYPE_CHECKING:
    from orderproof.forecast.planning import OrderForecast

CHEAPER_WITHIN = 0.01  # of the experts: a cheaper order is preferred to one that saves at most this share more


@dataclass(frozen=True)
class Advice:
    """What to do next."""

    answer: Literal["measure", "don't", "capture"]
    reason: str
    candidate: str | None = None  # name of the order that the reason is about


def advise(
    refusal: str | None,
    forecast: OrderForecast | None,
    rule: Rule,
    job: Job,
    detectable: float | None,
    routed: bool = False,
) -> Advice:
    """Advise to measure, to capture routes first, or not to measure.

    Args:
        refusal: why no order can help, if that is certain.
        forecast: None: nothing was captured, or the costs of a step are not known.
        detectable: the smallest gain that the last look would detect with 80 % power; None without earlier trials.
        routed: whether routes were captured.
    """
    if refusal:
        return Advice("don't", refusal)
    if forecast is None and routed:
        return Advice(
            "capture",
            "routes were captured, but not the costs of a step: they were skipped (--no-time-steps), or the capture "
            f"reported why they are unknown. Run `orderproof capture {job.name}` again; if it fails to time steps, "
            "only a trial can tell",
        )
    if forecast is None:
        return Advice("capture", f"a gain is possible; to predict its size, run `orderproof capture {job.name}`")
    best = _best(forecast)
    today = forecast.today
    again = " for the same prompts again" if best.name in _remembering(forecast) else ""
    reason = f"the best order{again}, {best.name}, is predicted to gain {interval(best)} over shuffled"
    more, _, most = over_today(best, today)
    if max(best.gain, more) < rule.min_effect:
        likely = "below" if max(best.high, most) < rule.min_effect else "most likely below"
        return Advice("don't", f"{reason}: {likely} the minimum effect of {rule.min_effect:.0%}", best.name)
    if more < rule.min_effect:
        return Advice("don't", f"{reason}, but today's order ({today.name}) has {interval(today)} already", best.name)
    if detectable is not None and more < detectable:
        limit = f"the smallest gain that a trial detects here is {detectable:.1%}"
        return Advice("don't", f"{reason} and {signed(more)} over today's order ({today.name}), and {limit}", best.name)
    if best.gain < rule.min_effect:
        reason += f", and {signed(more)} over today's order ({today.name}), which loses"
    return Advice("measure", reason, best.name)


def _best(forecast: OrderForecast) -> Prediction:
    """The order that saves the most experts, or the cheapest that comes near it.

    An order that learned from routes is compared on prompts that it did not learn from; one that remembers all of the
    job's prompts, on the same prompts.
    """
    saved = {one.name: one.experts_saved for one in forecast.predictions}
    if forecast.choices is not None:
        same = _remembering(forecast)
        specs = {choice.spec: choice.saved for choice in forecast.choices.ranked}
        saved |= {one.name: specs[one.spec] for one in forecast.candidates if one.name not in same}
    most = max(saved.values())
    return next(one for one in forecast.predictions if saved[one.name] >= most - CHEAPER_WITHIN)


def _remembering(forecast: OrderForecast) -> set[str]:
    """Names of the orders that use all prompts' earlier routes; none where only a sample was captured."""
    return {one.name for one in forecast.candidates if one.remembers} if forecast.whole else set()


def interval(prediction: Prediction) -> str:
    return with_interval(prediction.gain, prediction.low, prediction.high)
