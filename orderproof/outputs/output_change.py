"""Does the candidate change outputs more than reshuffling does, and how small a change can a trial detect?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict

from orderproof.outputs.disagreement import Float64, Int64, Pairs, Spread, mean, spread_of
from orderproof.outputs.passes import (
    CANDIDATE,
    CONTROL,
    OutputsError,
    PassOutputs,
    arm_of_shuffles,
    count_prompts,
    pairs_of,
)

TOLERANCE = 0.01  # one point: an excess below it counts as reshuffling, a score lost above it as worse


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScoreChange(_Frozen):
    """Scores against references, candidate minus control, paired by prompt. Fractions of the full score."""

    prompts: int  # those with a score in every pass of both arms
    control: float  # mean
    candidate: float
    difference: float
    low: float | None  # one-sided 95 % lower bound of the difference; None: too few passes or prompts to know
    passed: bool  # low > −1 point


class OutputChange(_Frozen):
    """How much more the candidate changes outputs than reshuffling does.

    A is the arm of shuffles, B the candidate. Disagreements are fractions of prompts, averaged over pairs of passes.
    None: too few passes (fewer than two of A, none of B) or, for bounds, too few to estimate their spread.
    """

    prompts: int
    control_passes: int  # passes of A
    candidate_passes: int
    d_aa: float | None  # the floor: what reshuffling alone does
    d_ab: float | None
    d_bb: float | None  # the engine's own noise
    excess: float | None  # d_ab − d_aa
    se: float | None  # the larger of the next two
    se_prompts: float | None  # over prompts, clustered by runs of neighbours
    se_passes: float | None  # over passes, delete-one jackknife
    low: float | None  # one-sided 95 % bounds of the excess
    high: float | None
    answer: Literal["as_reshuffling", "more_than_reshuffling", "undecided"]
    first_divergence: dict[str, dict[str, float | None]]  # divergence.first_divergence()
    vacuous: bool  # agreement cannot decide: sampled at random, or shuffles already disagree almost everywhere
    smallest_excess: float | None  # this trial would have called more than reshuffling with 80 % power
    scores: ScoreChange | None


def compare(
    passes: Sequence[PassOutputs],
    candidate_position: ArrayLike,
    max_num_seqs: int,
    *,
    vacuous: bool,
    first_divergence: Mapping[str, dict[str, float | None]] | None = None,
) -> OutputChange:
    """Did the candidate change outputs more than reshuffling does?

    The excess D_AB − D_AA is judged against one point by its one-sided 95 % bounds: `as_reshuffling` if the upper one
    is below it, `more_than_reshuffling` if the lower one is above it. A is the shuffled arm where there is one, because
    a control that keeps its order repeats itself and knows no reshuffling; else the control. Scores are always compared
    with the control.

    Args:
        passes: every counted pass, digests int64[N].
        candidate_position: int64[N], the place of prompt i in the candidate's order.
        max_num_seqs: prompts that run at once.
        vacuous: agreement cannot decide, e.g. the job samples at temperature 1; the answer is then `undecided`.
        first_divergence: what divergence.first_divergence() found, kept in the result.

    Raises:
        OutputsError: passes of different length, a pass given twice, or positions that are no order of the prompts.
    """
    prompts = count_prompts(passes)
    runs = _check_position(candidate_position, prompts) // max_num_seqs
    shuffles = arm_of_shuffles(passes)
    pairs = pairs_of(passes, shuffles)
    excess = _excess(pairs, shuffles, runs)
    return OutputChange(
        prompts=prompts,
        control_passes=pairs.arms.count(shuffles),
        candidate_passes=pairs.arms.count(CANDIDATE),
        d_aa=excess.d_aa,
        d_ab=excess.d_ab,
        d_bb=pairs.disagreement(CANDIDATE, CANDIDATE),
        excess=excess.rate,
        se=excess.spread.se if excess.spread else None,
        se_prompts=excess.spread.se_prompts if excess.spread else None,
        se_passes=excess.spread.se_passes if excess.spread else None,
        low=excess.low,
        high=excess.high,
        answer="undecided" if vacuous or excess.floor_is_everything else _answer(excess),
        first_divergence=dict(first_divergence or {}),
        vacuous=vacuous or excess.floor_is_everything,
        smallest_excess=excess.smallest,
        scores=_compare_scores(passes, runs),
    )


@dataclass(frozen=True)
class _Excess:
    """D_AB − D_AA and how uncertain it is; None: too few passes to tell.

    The bounds take the larger of two standard errors, over prompts clustered by runs of `max_num_seqs` neighbours in
    the candidate's order and over passes (disagreement.py), times a quantile of Student's t. Simulated for 768 prompts
    in 12 runs whose neighbours flip together, at a true excess of one point: `more_than_reshuffling` comes in 4.5 % of
    trials, with the normal quantile in 6.3 %, with an SE over independent prompts in 22 %. The other error has no such
    guard: an excess made of a few batches that flip whole is often missed whole, so that `as_reshuffling` comes at one
    point in 5 % of trials where prompts flip one by one, but in up to 14 % in that world.
    """

    d_aa: float | None
    d_ab: float | None
    spread: Spread | None

    @property
    def rate(self) -> float | None:
        return None if self.d_aa is None or self.d_ab is None else self.d_ab - self.d_aa

    @property
    def floor_is_everything(self) -> bool:
        """Shuffles disagree almost everywhere, so that no excess above one point is possible."""
        return self.d_aa is not None and 1 - self.d_aa <= TOLERANCE

    @property
    def low(self) -> float | None:
        return None if self.rate is None or self.spread is None else self.rate - self.spread.half_width_of_a_rate

    @property
    def high(self) -> float | None:
        return None if self.rate is None or self.spread is None else self.rate + self.spread.half_width_of_a_rate

    @property
    def smallest(self) -> float | None:
        """That this trial would have called more than reshuffling."""
        return None if self.rate is None or self.spread is None else self.spread.smallest_rate(TOLERANCE, self.rate)


def _excess(pairs: Pairs, shuffles: str, runs: Int64) -> _Excess:
    """Of the candidate over the arm of shuffles; a control that keeps its order takes no part in it."""
    d_aa, d_ab = pairs.disagreement(shuffles, shuffles), pairs.disagreement(shuffles, CANDIDATE)
    if d_aa is None or d_ab is None:
        return _Excess(d_aa, d_ab, None)
    passes = pairs.arms.count(shuffles) + pairs.arms.count(CANDIDATE)
    return _Excess(d_aa, d_ab, spread_of(pairs.excess_rate(), runs, pairs.jackknife_se(), passes))


def _answer(excess: _Excess) -> Literal["as_reshuffling", "more_than_reshuffling", "undecided"]:
    if excess.high is not None and excess.high < TOLERANCE:
        return "as_reshuffling"
    if excess.low is not None and excess.low > TOLERANCE:
        return "more_than_reshuffling"
    return "undecided"


def _compare_scores(passes: Sequence[PassOutputs], runs: Int64) -> ScoreChange | None:
    """Per prompt, mean score of the candidate's passes minus the control's; None where nothing was scored in both."""
    control, candidate = (
        [p.scores for p in passes if p.arm == arm and p.scores is not None] for arm in (CONTROL, CANDIDATE)
    )
    if not control or not candidate:
        return None
    scored = ~np.isnan([*control, *candidate]).any(axis=0)
    if not scored.any():
        return None
    before, after = (np.array(scores)[:, scored] for scores in (control, candidate))  # [passes, prompts]
    change = after.sum(axis=0) / len(after) - before.sum(axis=0) / len(before)
    spread = spread_of(change, runs[scored], _se_of_means(before, after), len(before) + len(after))
    difference = mean(change)
    low = difference - spread.half_width if spread else None
    return ScoreChange(
        prompts=len(change),
        control=mean(before.ravel()),
        candidate=mean(after.ravel()),
        difference=difference,
        low=low,
        passed=low is not None and low > -TOLERANCE,
    )


def _se_of_means(*arms: Float64) -> float | None:
    """SE over passes of a difference of means (the delete-one jackknife of a mean is s²/n); None for a single pass."""
    if any(len(scores) < 2 for scores in arms):
        return None
    return math.sqrt(sum(statistics.variance([mean(one) for one in scores]) / len(scores) for scores in arms))


def detectable_excess(
    shuffle_disagreement: ArrayLike, prompts: int, max_num_seqs: int, passes_per_arm: int = 10
) -> float:
    """Before a trial: the smallest excess that it would call more than reshuffling with 80 % power, at the worst.

    A prompt whose variants have probabilities p disagrees with itself at d = 1 − Σp². A candidate whose passes all
    repeat one draw, against n shuffles, has an excess of variance Σp³(1 − 1/n) − (1 − d)² + (1 − d)/n, where
    Σp³ ≤ max(p)·Σp² ≤ (1 − d)^1.5. That limit is taken. It holds for prompts that flip one by one; how much neighbours
    that flip together add, only the trial can show.

    Args:
        shuffle_disagreement: a pilot's D_AA or, better, its values per prompt, so that prompts that never change count.
        prompts: how many the trial will measure.
        max_num_seqs: prompts that run at once.
        passes_per_arm: its blocks at the last look.

    Returns: a fraction of prompts; inf where there would be too few runs of neighbours or passes to judge at all.
    """
    degrees = min(math.ceil(prompts / max_num_seqs) - 1, 2 * passes_per_arm - 2)
    if degrees < 1 or passes_per_arm < 3:
        return math.inf
    same = 1 - np.atleast_1d(np.asarray(shuffle_disagreement, np.float64))
    variance = same**1.5 * (1 - 1 / passes_per_arm) - same**2 + same / passes_per_arm
    se = math.sqrt(max(0.0, mean(variance)) / prompts)
    return Spread(prompts, se, se, degrees).smallest_rate(TOLERANCE, seen=0.0)


def _check_position(position: ArrayLike, prompts: int) -> Int64:
    places = np.asarray(position, np.int64)
    if len(places) != prompts or not np.array_equal(np.sort(places), np.arange(prompts)):
        raise OutputsError(f"candidate_position must give each of {prompts} prompts its own place, 0 to {prompts - 1}")
    return places
