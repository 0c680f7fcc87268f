"""The verdict on a trial: pairs of slices and the change of outputs in, a `Verdict` out, or None while a look is ahead.

No file, engine or tracker takes part: whoever holds the same numbers reaches the same verdict, bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from orderproof.job.looks import Looks
from orderproof.measure.estimator import (
    Estimate,
    SliceTable,
    degrees_of_freedom,
    estimate,
    t_upper,
)
from orderproof.measure.outputs_policy import Policy, judge_outputs
from orderproof.measure.spending import spending_levels
from orderproof.outputs.output_change import OutputChange

EXIT_CODES = {"promote": 0, "keep": 10, "inconclusive": 11, "refused": 12, "invalid": 13}

POWER = 0.8
POWER_SD = 0.8416212335729143  # the standard normal's quantile at POWER
STALLS_LIMIT = 0.05  # p of the candidate having its share of the stalls by chance
LENGTHS_TOLERANCE = 0.01  # of ln(output tokens control ÷ candidate)

Name = Literal["invalid", "promote", "keep", "inconclusive", "refused"]


class Rule(BaseModel):
    """What is registered before the first slice and decides afterwards. Gains are fractions: 0.03 is 3 %."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.025  # one-sided, of all looks together: wrong promotions
    keep_alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05  # one-sided, of all looks together: wrong keeps
    looks: Looks = (2, 3, 5, 8, 12)  # numbers of blocks at which a verdict may be given
    margin: Annotated[float, Field(ge=0)] = 0.01  # promote only a gain that is surely above it
    min_effect: Annotated[float, Field(gt=0)] = 0.03  # keep when the gain is surely below it
    outputs: Policy = "not_worse"
    budget_s: Annotated[float, Field(gt=0)] | None = None  # of measuring; None: no limit

    @property
    def promote_levels(self) -> tuple[float, ...]:
        """One-sided significance level of each look."""
        return spending_levels(self.looks, self.alpha)

    @property
    def keep_levels(self) -> tuple[float, ...]:
        return spending_levels(self.looks, self.keep_alpha)


@dataclass(frozen=True)
class Evidence:
    """What the complete blocks of a trial measured."""

    table: SliceTable  # of a single trial: [blocks, strata]
    tokens: SliceTable | None = None  # output tokens in the times' place, requests as work; None: fixed lengths
    prefix_gain: float = 0.0  # the part of the gain that prompt tokens found in the prefix cache make
    foreign: float = 0.0  # shares of generated tokens that belong to the other arm's requests, both arms' added


class Noise(BaseModel):
    """Two halves of the control's slices against each other, by the same estimator: what the machine alone does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gain: float
    gain_low: float
    gain_high: float


class Verdict(BaseModel):
    """The result of a trial and every number that it rests on. Gains are fractions: 0.03 is 3 %."""

    # JSON has no NaN; as a string it survives the way there and back, so invalid data stay visible in the record.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    verdict: Name
    reason: str
    exit_code: int
    blocks: int  # complete ones
    strata: int | None = None  # pairs in a block
    look: int | None = None  # number of the look, from 1; None: not at a look
    log_gain: float | None = None  # ln(time per work, control ÷ candidate), total over total
    se: float | None = None  # of log_gain
    degrees: float | None = None  # of freedom of se
    effective_strata: float | None = None
    promote_level: float | None = None  # one-sided, of this look
    keep_level: float | None = None
    gain: float | None = None
    gain_low: float | None = None  # at promote_level: over all looks together two-sided 1 − 2·alpha
    gain_high: float | None = None
    gain_upper: float | None = None  # at keep_level, without mixing: below min_effect, the verdict is `keep`
    detectable_gain: float | None = None  # smallest, by the last look, with 80 % power at this noise
    prefix_gain: float | None = None  # the part of the gain that prompt tokens found in the prefix cache make
    raw_gain: float | None = None  # ratio of total times, neither capped nor per work
    own_share: float | None = None  # of the tokens in a slice's window, those of its own arm; 1 for clean slices
    gain_without_mixing: float | None = None  # descriptive: never promotes
    capped_candidate: int = 0  # slices whose time was limited as a stall
    capped_control: int = 0
    stalls_p: float | None = None  # of so many of them in the candidate by chance
    length_log_ratio: float | None = None  # ln(output tokens, control ÷ candidate); None: lengths are fixed
    length_se: float | None = None
    noise: Noise | None = None
    outputs: OutputChange | None = None


def refused(reason: str) -> Verdict:
    """The plan's refusal, before anything was measured."""
    return _verdict("refused", _sentence(reason), blocks=0)


def reach_verdict(
    evidence: Evidence | None,
    rule: Rule,
    outputs: OutputChange | None,
    *,
    noise: Noise | None = None,
    invalid: str | None = None,
    out_of_time: bool = False,
) -> Verdict | None:
    """The verdict at a look, the first that holds: invalid, promote, keep, inconclusive.

    Args:
        evidence: the complete blocks; None: there is none.
        outputs: how the outputs of the same blocks changed; None: not compared, which never promotes.
        noise: of the machine, for the record.
        invalid: why the data cannot carry a verdict, where the caller knows; it holds at any number of blocks.
        out_of_time: the registered budget ends here, at a look or between two.

    Returns:
        None between looks, or where nothing holds and a look is still ahead.
    """
    blocks = evidence.table.blocks if evidence else 0
    if not invalid and not out_of_time and blocks < rule.looks[-1] and blocks not in rule.looks:
        return None
    facts: dict[str, Any] = {"blocks": blocks, "outputs": outputs, "noise": noise}
    facts["look"] = rule.looks.index(blocks) + 1 if blocks in rule.looks else None
    defect = invalid or _defect(evidence, rule)
    if defect:
        return _verdict("invalid", _sentence(defect), **facts)
    if evidence is None or blocks < 2:
        short = f"The budget of time ended after {_blocks(blocks)}, before the first look at {rule.looks[0]}."
        return _verdict("inconclusive", short, **facts)
    weighed = _Weighed.at(evidence, rule)
    facts |= weighed.figures()
    if facts["look"] is None:
        short = f"The budget of time ended after {_blocks(blocks)}, between two looks. {weighed.so_far}."
        return _verdict("inconclusive", f"{short} {weighed.sensitivity}", **facts)
    decided = weighed.answer(outputs, last=out_of_time or blocks == rule.looks[-1])
    return _verdict(*decided, **facts) if decided else None


@dataclass(frozen=True)
class _Weighed:
    """A trial's evidence held against its rule."""

    evidence: Evidence
    rule: Rule
    seen: Estimate
    promote_level: float
    keep_level: float
    lengths: tuple[float, float] | None  # log ratio of output tokens, control ÷ candidate, and its SE

    @classmethod
    def at(cls, evidence: Evidence, rule: Rule) -> _Weighed:
        """At the evidence's blocks; between looks with the levels of the next one."""
        blocks, lengths = evidence.table.blocks, None
        place = next(i for i, look in enumerate(rule.looks) if look >= blocks)
        if evidence.tokens:
            change = estimate(evidence.tokens, cap=math.inf)
            lengths = (float(change.log_gain), float(change.se))
        seen = estimate(evidence.table)
        return cls(evidence, rule, seen, rule.promote_levels[place], rule.keep_levels[place], lengths)

    @property
    def own_share(self) -> float:
        return 1 - self.evidence.foreign

    @property
    def stalls_p(self) -> float:
        return stalls_p(int(self.seen.capped_candidate), int(self.seen.capped_control))

    @property
    def upper(self) -> float:
        """Upper bound of log_gain at the keep level, without mixing."""
        return float(self.seen.high(self.keep_level)) / self.own_share

    @property
    def so_far(self) -> str:
        """The gain and its interval, as a clause."""
        bounds = (self.seen.low(self.promote_level), self.seen.high(self.promote_level))
        low, high = (_signed(math.expm1(bound)) for bound in bounds)
        return f"After {_blocks(self.seen.blocks)} the gain is {_signed(float(self.seen.gain))} ({low} to {high})"

    @property
    def sensitivity(self) -> str:
        """How small a gain a trial could have shown."""
        last = self.rule.looks[-1]
        text = f"A trial of {_blocks(last)} detects a gain of {_signed(self.detectable())} with {_percent(POWER)} power"
        return f"{text}, one of {2 * last} a gain of {_signed(self.detectable(2 * last))}."

    def detectable(self, blocks: int | None = None) -> float:
        seen = self.seen
        noise = float(seen.se) * math.sqrt(seen.blocks)
        return detectable_gain(noise, seen.strata, float(seen.effective_strata), self.rule, blocks)

    def figures(self) -> dict[str, Any]:
        """Fields of `Verdict`."""
        seen, table = self.seen, self.evidence.table
        length_log_ratio, length_se = self.lengths or (None, None)
        return {
            "strata": seen.strata,
            "log_gain": float(seen.log_gain),
            "se": float(seen.se),
            "degrees": float(seen.degrees),
            "effective_strata": float(seen.effective_strata),
            "promote_level": self.promote_level,
            "keep_level": self.keep_level,
            "gain": float(seen.gain),
            "gain_low": math.expm1(seen.low(self.promote_level)),
            "gain_high": math.expm1(seen.high(self.promote_level)),
            "gain_upper": math.expm1(self.upper),
            "detectable_gain": self.detectable(),
            "prefix_gain": self.evidence.prefix_gain,
            "raw_gain": float(table.control_s.sum() / table.candidate_s.sum() - 1),
            "own_share": self.own_share,
            "gain_without_mixing": math.expm1(float(seen.log_gain) / self.own_share),
            "capped_candidate": int(seen.capped_candidate),
            "capped_control": int(seen.capped_control),
            "stalls_p": self.stalls_p,
            "length_log_ratio": length_log_ratio,
            "length_se": length_se,
        }

    def answer(self, outputs: OutputChange | None, *, last: bool) -> tuple[Name, str] | None:
        """The rule, top to bottom, on valid data at a look: a verdict and its reason; None: go on."""
        rule = self.rule
        standing, about_outputs = judge_outputs(outputs, rule.outputs)
        look = self._first_fast_look()
        doubt = self._doubt()
        fast = f"{self.so_far}, surely above the margin of {_percent(rule.margin)}"
        if look is not None and look < self.seen.blocks:
            fast = f"{self.so_far}; it was surely above the margin of {_percent(rule.margin)} after {_blocks(look)}"
        if look is not None and not doubt and standing == "allowed":
            return "promote", f"{fast}. {about_outputs}{self._about_prefixes()}"
        if standing == "worse":
            return "keep", f"{about_outputs} {self.so_far}."
        if self.upper < math.log1p(rule.min_effect):
            return "keep", f"{self.so_far}, surely below the minimum effect of {_percent(rule.min_effect)}."
        if look is not None and doubt and self._lengths_changed():
            return "inconclusive", f"{fast}, but {doubt}."
        if not last:
            return None
        if look is not None and doubt:
            return "inconclusive", f"{fast}, but {doubt}."
        if look is not None:
            return "inconclusive", f"{fast}, but the outputs do not meet the policy `{rule.outputs}`. {about_outputs}"
        open_ = f"neither surely above the margin of {_percent(rule.margin)} nor surely below the minimum effect"
        return "inconclusive", f"{self.so_far}, {open_} of {_percent(rule.min_effect)}. {self.sensitivity}"

    def _about_prefixes(self) -> str:
        """A sentence where the prefix cache alone carries the gain over the margin: many orders would do that."""
        prefix = self.evidence.prefix_gain
        if prefix <= self.rule.margin:
            return ""
        return f" Prompts found in the prefix cache make {_signed(prefix)} of it, so another order might do as well."

    def _first_fast_look(self) -> int | None:
        """The first look so far whose lower bound was above the margin: a later look is for the outputs alone."""
        for look, level in zip(self.rule.looks, self.rule.promote_levels, strict=True):
            if look > self.seen.blocks:
                break
            if estimate(self.evidence.table.until(look)).low(level) > math.log1p(self.rule.margin):
                return look
        return None

    def _lengths_changed(self) -> bool:
        return self.lengths is not None and abs(self.lengths[0]) - 2 * self.lengths[1] > LENGTHS_TOLERANCE

    def _doubt(self) -> str | None:
        """Why a gain is not the order's, or not one per work."""
        if self._lengths_changed():
            assert self.lengths
            change = math.expm1(-self.lengths[0])
            return f"the order changed the output lengths ({_signed(change)} tokens in the candidate)"
        if self.stalls_p <= STALLS_LIMIT:
            counts = f"{int(self.seen.capped_candidate)} of its slices, {int(self.seen.capped_control)} of the control"
            return f"stalls come with the candidate ({counts}, p = {self.stalls_p:.3f})"
        return None


def stalls_p(candidate: int, control: int) -> float:
    """Probability of at least `candidate` stalls among all of them, if either arm were as likely to have each."""
    from scipy import special

    return float(special.bdtrc(candidate - 1, candidate + control, 0.5)) if candidate else 1.0


def detectable_gain(noise: float, strata: int, effective_strata: float, rule: Rule, blocks: int | None = None) -> float:
    """The smallest true gain that the last look promotes with 80 % power.

    Args:
        noise: standard error of log_gain after a single block: that after n blocks times √n.
        strata, effective_strata: of the trial; they give the degrees of freedom.
        blocks: at the last look; None: those of the rule. The level of the rule's last look stays, which changes little
            with its number of blocks.
    """
    last = blocks or rule.looks[-1]
    degrees = degrees_of_freedom(last, strata, np.asarray(effective_strata))
    reach = float(t_upper(rule.promote_levels[-1], degrees)) + POWER_SD
    return math.expm1(math.log1p(rule.margin) + reach * noise / math.sqrt(last))


def noise_between(table: SliceTable, rule: Rule) -> Noise:
    """The control's noise from a table whose two arms are halves of its slices, at the last look's level."""
    seen = estimate(table)
    low, high = (math.expm1(bound) for bound in (seen.low(rule.promote_levels[-1]), seen.high(rule.promote_levels[-1])))
    return Noise(gain=float(seen.gain), gain_low=low, gain_high=high)


def _defect(evidence: Evidence | None, rule: Rule) -> str | None:
    """Why these numbers cannot carry a verdict. A slow or noisy machine is no defect."""
    if evidence is None:
        return None
    table = evidence.table
    if table.blocks > rule.looks[-1]:
        return f"{table.blocks} blocks were measured, but the plan ended at {rule.looks[-1]}"
    if not table.measurable:
        return "a slice has no time or no work above zero"
    if table.blocks >= 2 and bool(estimate(table).constant):
        return f"all {table.blocks * table.strata} pairs gave the same value, which timed slices never do"
    return None


def _verdict(name: Name, reason: str, **facts: Any) -> Verdict:
    return Verdict(verdict=name, reason=reason, exit_code=EXIT_CODES[name], **facts)


def _blocks(count: int) -> str:
    return f"{count} block" + "s" * (count != 1)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('. ')}."


def _signed(gain: float) -> str:
    return f"{100 * gain:+z.1f} %"


def _percent(gain: float) -> str:
    return f"{100 * gain:g} %"
