"""Log ratios of a trial's blocks and the change of its outputs in, a verdict out.

In: one number per block, a `Rule`, an `OutputChange`. Out: a `Verdict`, or None while more blocks are planned. Knows
nothing of files, engines or trackers: whoever holds the same numbers reaches the same verdict, bit for bit.

Rates are compared as d = ln(rate_candidate / rate_control) per block, so that twice and half as fast are equally far
from no change. Bounds are computed on that scale and reported as gains, exp(d) − 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from orderproof.job.looks import Looks
from orderproof.measure.sign_flip import sign_flip_p
from orderproof.outputs.output_change import TOLERANCE, OutputChange, ScoreChange
from orderproof.outputs.quantiles import noncentrality, t_quantile

EXIT_CODES = {"promote": 0, "keep": 10, "inconclusive": 11, "refused": 12, "invalid": 13}

CONFIDENCE = 0.95  # of every bound that is not split over the looks
SIGN_FLIP_LIMIT = 0.05
POWER = 0.8
CLOCK_RESOLUTION = 1e-12  # of a log ratio; no clock tells timed passes apart by less

Name = Literal["invalid", "promote", "keep", "inconclusive", "refused"]


class Rule(BaseModel):
    """What is registered before the first pass and decides afterwards. Gains are fractions: 0.03 is 3 %."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: str = "throughput_req_s"
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.025  # one-sided, of all looks together
    looks: Looks = (5, 10)  # blocks at which a verdict may be given
    margin: Annotated[float, Field(ge=0)] = 0.01  # promote only a gain that is surely above it
    min_effect: Annotated[float, Field(gt=0)] = 0.03  # keep when the gain is surely below it
    outputs: Literal["proven", "not_worse"] = "not_worse"


class Verdict(BaseModel):
    """What a trial says, and every number that it rests on. Gains are fractions: 0.03 is 3 %."""

    # JSON has no NaN; as a string it survives the way there and back, so invalid data stay visible in the record.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    verdict: Name
    reason: str
    exit_code: int
    blocks: int  # that counted
    look: int | None = None  # number of the look, from 1; None: not at a look
    log_ratios: tuple[float, ...] = ()  # ln(rate_candidate / rate_control), per block
    mean: float | None = None  # of the log ratios
    sd: float | None = None  # of the log ratios
    gain: float | None = None
    gain_low: float | None = None  # at the look's t: over all looks together two-sided 1 − 2·alpha
    gain_high: float | None = None
    gain_upper95: float | None = None  # one-sided, of this look alone
    t_critical: float | None = None
    sign_flip_p: float | None = None
    detectable_gain: float | None = None  # smallest, by the last look, with 80 % power at this sd
    outputs: OutputChange | None = None


@dataclass(frozen=True)
class Estimate:
    """Mean log ratio and its bounds at one look; arrays of the trials' shape, () for a single trial."""

    blocks: int
    t: float
    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    low: NDArray[np.float64]  # mean − t·sd/√n
    high: NDArray[np.float64]  # mean + t·sd/√n
    upper95: NDArray[np.float64]  # one-sided, not split over the looks

    def surely_faster(self, rule: Rule) -> NDArray[np.bool_]:
        """The lower bound is above the margin."""
        return np.asarray(self.low > math.log1p(rule.margin))

    def surely_below_min_effect(self, rule: Rule) -> NDArray[np.bool_]:
        """The one-sided 95 % upper bound is below the minimum effect."""
        return np.asarray(self.upper95 < math.log1p(rule.min_effect))


def estimate(log_ratios: NDArray[np.float64], rule: Rule) -> Estimate:
    """Student's t over the last axis: float64[..., n blocks] → `Estimate` of shape [...]."""
    ordered = np.sort(log_ratios, axis=-1)  # so that the order of blocks cannot move a sum's last bit
    n = ordered.shape[-1]
    mean = ordered.mean(axis=-1)
    sd = ordered.std(axis=-1, ddof=1)
    t = t_critical(n, rule.alpha, rule.looks)
    error = sd / math.sqrt(n)
    upper95 = mean + t_quantile(CONFIDENCE, n - 1) * error
    return Estimate(n, t, mean, sd, mean - t * error, mean + t * error, upper95)


def t_critical(n: int, alpha: float, looks: Sequence[int]) -> float:
    """One-sided Student's t for n blocks (n − 1 degrees of freedom), alpha split evenly over the looks (Bonferroni)."""
    return t_quantile(1 - alpha / len(looks), n - 1)


def detectable_gain(sd: float, rule: Rule, power: float = POWER) -> float:
    """Smallest true gain that the last look's t test promotes with this power (noncentral t); sd of a log ratio."""
    n = rule.looks[-1]
    shift = noncentrality(power, n - 1, t_critical(n, rule.alpha, rule.looks))
    return _gain(math.log1p(rule.margin) + shift * sd / math.sqrt(n))


def refused(reason: str, rule: Rule, *, sd: float | None = None) -> Verdict:
    """The plan's refusal, before any pass; sd of a log ratio where this engine's history knows it."""
    detectable = None if sd is None else detectable_gain(sd, rule)
    return _verdict("refused", _sentence(reason), rule, blocks=0, detectable_gain=detectable)


def decide(
    log_ratios: Sequence[float], rule: Rule, outputs: OutputChange | None, *, invalid: str | None = None
) -> Verdict | None:
    """The verdict at a look, the first that holds: invalid, promote, keep, inconclusive.

    Args:
        log_ratios: ln(rate_candidate / rate_control) of every block that counts, in the blocks' order.
        outputs: how the outputs of the same blocks changed; None: not compared, which never promotes.
        invalid: why the data cannot carry a verdict, where the caller knows; it holds at any number of blocks.

    Returns:
        None at a number of blocks that is no look, or where nothing holds and a look is still to come.
    """
    ratios = tuple(map(float, log_ratios))
    if invalid is None and len(ratios) < rule.looks[-1] and len(ratios) not in rule.looks:
        return None
    facts: dict[str, Any] = {"blocks": len(ratios), "log_ratios": ratios, "outputs": outputs}
    facts["look"] = rule.looks.index(len(ratios)) + 1 if len(ratios) in rule.looks else None
    defect = _defect(ratios, rule)
    if defect:
        return _verdict("invalid", _sentence(invalid or defect), rule, **facts)
    seen, flips = estimate(np.array(ratios), rule), sign_flip_p(ratios)
    facts |= _figures(seen, rule) | {"sign_flip_p": flips}
    if invalid:
        return _verdict("invalid", _sentence(invalid), rule, **facts)
    decided = _weigh(seen, flips, rule, outputs)
    return _verdict(*decided, rule, **facts) if decided else None


def _defect(ratios: tuple[float, ...], rule: Rule) -> str | None:
    """Why these numbers cannot carry a verdict."""
    if len(ratios) > rule.looks[-1]:
        return f"{len(ratios)} blocks were counted, but the plan ended at {rule.looks[-1]}"
    missing = [str(number) for number, ratio in enumerate(ratios, start=1) if not math.isfinite(ratio)]
    if missing:
        return f"the ratio of rates is missing or not finite in counted block {', '.join(missing)}"
    if len(ratios) < 2:
        return f"{len(ratios)} blocks have no spread"
    if max(ratios) - min(ratios) < CLOCK_RESOLUTION:
        return f"all {len(ratios)} blocks gave the same ratio of rates, which timed passes never do"
    return None


def _figures(seen: Estimate, rule: Rule) -> dict[str, float]:
    return {
        "mean": float(seen.mean),
        "sd": float(seen.sd),
        "gain": _gain(seen.mean),
        "gain_low": _gain(seen.low),
        "gain_high": _gain(seen.high),
        "gain_upper95": _gain(seen.upper95),
        "t_critical": seen.t,
        "detectable_gain": detectable_gain(float(seen.sd), rule),
    }


def _weigh(seen: Estimate, flips: float, rule: Rule, outputs: OutputChange | None) -> tuple[Name, str] | None:
    """The rule itself, top to bottom, on valid data: a verdict and its reason."""
    above = bool(seen.surely_faster(rule))
    faster = above and flips <= SIGN_FLIP_LIMIT
    standing, about_outputs = _outputs_standing(outputs, rule)
    gain = f"After {seen.blocks} blocks the gain is {_interval(seen)}"
    fast = f"{gain}, surely above the margin of {_percent(rule.margin)}"
    if faster and standing == "allowed":
        return "promote", f"{fast}. {about_outputs}"
    if standing == "worse":
        return "keep", f"{about_outputs} {gain}."
    if seen.surely_below_min_effect(rule):
        return "keep", f"{gain}, surely below the minimum effect of {_percent(rule.min_effect)}."
    if faster:
        return "inconclusive", f"{fast}, but the outputs do not meet the policy `{rule.outputs}`. {about_outputs}"
    if seen.blocks < rule.looks[-1]:
        return None
    if above:
        return "inconclusive", f"{fast}, but the sign-flip test gives p = {flips:.3f}, above {SIGN_FLIP_LIMIT}."
    between = f"neither surely above the margin of {_percent(rule.margin)}"
    return "inconclusive", f"{gain}, {between} nor surely below the minimum effect of {_percent(rule.min_effect)}."


def _outputs_standing(outputs: OutputChange | None, rule: Rule) -> tuple[Literal["allowed", "unproven", "worse"], str]:
    """Whether the outputs allow a promotion, withhold it, or speak for the current order; and in which words.

    Where agreement is vacuous, only scores can speak. A drop of scores is proven when the whole two-sided 90 % interval
    lies under the tolerance; it is symmetric, so its upper end is 2·difference − low.
    """
    if outputs is None:
        return "unproven", "No outputs were compared."
    scores = outputs.scores
    if scores and scores.low is not None and 2 * scores.difference - scores.low < -TOLERANCE:
        return "worse", f"Scores fell: {_scores(scores)}, surely by more than 1 point."
    if outputs.answer == "more_than_reshuffling" and not outputs.vacuous:
        return "worse", f"Outputs changed more than reshuffling changes them: {_excess(outputs)}."
    if scores and not scores.passed:
        return "unproven", f"Scores are not surely within 1 point of the control's: {_scores(scores)}."
    if outputs.vacuous and scores:
        return "allowed", f"Agreement of outputs is chance at this sampling, but scores hold: {_scores(scores)}."
    lenient: Literal["allowed", "unproven"] = "allowed" if rule.outputs == "not_worse" else "unproven"
    if outputs.vacuous:
        return (
            lenient,
            "Outputs could not be judged: their agreement is chance at this sampling, and nothing is scored.",
        )
    if outputs.excess is None:
        return "unproven", "Too few passes for comparing outputs."
    if outputs.answer == "as_reshuffling":
        return "allowed", f"Outputs changed no more than reshuffling changes them: {_excess(outputs)}."
    return lenient, f"Whether outputs changed more than reshuffling changes them is undecided: {_excess(outputs)}."


def _gain(log_ratio: float | NDArray[np.float64]) -> float:
    try:
        return math.expm1(log_ratio)
    except OverflowError:
        return math.inf


def _verdict(name: Name, reason: str, rule: Rule, **facts: Any) -> Verdict:
    if name != "promote":
        reason = f"{reason} {_sensitivity(facts.get('detectable_gain'), rule)}"
    return Verdict(verdict=name, reason=reason, exit_code=EXIT_CODES[name], **facts)


def _sensitivity(detectable: float | None, rule: Rule) -> str:
    if detectable is None:
        return "How small a gain could have been seen is not known, for want of paired passes with a spread."
    trial = f"{rule.looks[-1]} such blocks"
    return f"The smallest gain that {trial} see with {_percent(POWER)} power is {_signed(detectable)}."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('. ')}."


def _interval(seen: Estimate) -> str:
    return f"{_signed(_gain(seen.mean))} ({_signed(_gain(seen.low))} to {_signed(_gain(seen.high))})"


def _signed(gain: float) -> str:
    return f"{100 * gain:+z.1f} %"


def _percent(gain: float) -> str:
    return f"{100 * gain:g} %"


def _excess(outputs: OutputChange) -> str:
    """In points: hundredths of the prompts."""
    assert outputs.excess is not None
    if outputs.low is None or outputs.high is None:
        return f"{100 * outputs.excess:+z.1f} points"
    return f"{100 * outputs.excess:+z.1f} points ({100 * outputs.low:+z.1f} to {100 * outputs.high:+z.1f})"


def _scores(scores: ScoreChange) -> str:
    bound = "unknown" if scores.low is None else f"{100 * scores.low:+.1f}"
    return f"{100 * scores.difference:+.1f} points, lower bound {bound}"
