"""Measure this candidate, or don't, and why.

In: why nothing can be gained, a forecast, and what a trial could see. Out: `Advice`, in words for a person. Decides
nothing that a trial decides: it only says whether a trial is worth its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from orderproof.forecast.prediction import Prediction, over
from orderproof.job.formatting import signed, with_interval
from orderproof.job.spec import Job
from orderproof.measure.verdict import Rule

if TYPE_CHECKING:
    from orderproof.forecast.planning import Forecast

CHEAPER_WITHIN = 0.01  # of the experts: an order that costs less is preferred to one that saves no more than so much


@dataclass(frozen=True)
class Advice:
    """What to do next."""

    answer: Literal["measure", "don't", "capture"]
    reason: str
    candidate: str | None = None  # name of the order that the reason is about


def advise(
    refusal: str | None, forecast: Forecast | None, rule: Rule, job: Job, detectable: float | None, routed: bool = False
) -> Advice:
    """Give the plain verdict.

    Args:
        refusal: why no order can help, where that is certain.
        forecast: None: nothing was captured, or what a step costs is not known.
        detectable: the smallest gain that the last look would detect with 80 % power; None without earlier trials.
        routed: whether routes were captured.
    """
    if refusal:
        return Advice("don't", refusal)
    if forecast is None and routed:
        return Advice(
            "capture",
            "routes were captured, but not what a step costs: either it was left out (--no-time-steps), or the capture "
            f"said why it cannot be told, and then only a trial can tell. Try `orderproof capture {job.name}` again",
        )
    if forecast is None:
        return Advice("capture", f"nothing rules a gain out and nothing foretells one: `orderproof capture {job.name}`")
    best = _best(forecast)
    today = forecast.today
    again = " for the same prompts again" if best.name in _remembering(forecast) else ""
    said = f"the best order{again}, {best.name}, is predicted to gain {interval(best)} over shuffled"
    more, _, most = over(best, today)
    if max(best.gain, more) < rule.min_effect:
        likely = "below" if max(best.high, most) < rule.min_effect else "most likely below"
        return Advice("don't", f"{said}: {likely} the minimum effect of {rule.min_effect:.0%}", best.name)
    if more < rule.min_effect:
        return Advice("don't", f"{said}, but today's order ({today.name}) has {interval(today)} already", best.name)
    if detectable is not None and more < detectable:
        seen = f"the smallest gain that a trial detects here is {detectable:.1%}"
        return Advice("don't", f"{said} and {signed(more)} over today's order ({today.name}), and {seen}", best.name)
    if best.gain < rule.min_effect:
        said += f", and {signed(more)} over today's order ({today.name}), which loses"
    return Advice("measure", said, best.name)


def _best(forecast: Forecast) -> Prediction:
    """The order that saves the most experts, or the cheapest that comes near it.

    One that learned from routes counts by prompts that it did not learn from; one that remembers all of the job's
    prompts by the same prompts.
    """
    saved = {one.name: one.experts_saved for one in forecast.predictions}
    if forecast.choices is not None:
        same = _remembering(forecast)
        specs = {choice.spec: choice.saved for choice in forecast.choices.ranked}
        saved |= {one.name: specs[one.spec] for one in forecast.candidates if one.name not in same}
    most = max(saved.values())
    return next(one for one in forecast.predictions if saved[one.name] >= most - CHEAPER_WITHIN)


def _remembering(forecast: Forecast) -> set[str]:
    """Names of the orders that know the answers of all prompts; where only a sample was captured, of none."""
    return {one.name for one in forecast.candidates if one.remembers} if forecast.whole else set()


def interval(one: Prediction) -> str:
    return with_interval(one.gain, one.low, one.high)
