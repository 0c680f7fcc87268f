"""Whether scores moved between two generations: a paired comparison of the scores of each output."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from orderproof.outputs.disagreement import Float64, Int64, clustered_se, mean
from orderproof.outputs.quantiles import t_quantile

CONFIDENCE = 0.95  # of the two-sided interval: scores moved if it excludes 0


class ScoreComparison(BaseModel):
    """Scores against references, paired by output, as fractions of the full score. Differences are now minus then."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scorer: str
    outputs: int  # with a score both times
    then: float  # mean
    now: float
    difference: float
    se: float | None  # standard error of the difference; None for a single output
    half_width: float | None  # of the 95 % interval
    changed: int  # outputs whose score changed
    answer: Literal["as before", "moved", "too few to tell"]


def compare_scores(scorer: str, then: Float64, now: Float64, neighbours: Int64) -> ScoreComparison:
    """Did the mean score move beyond its standard error?

    It moved if |d̄| > t·SE, with d the paired differences and t the two-sided 95 % quantile of Student's distribution.
    SE is the larger of two: √(Σ(dᵢ − d̄)² / (n(n − 1))), that of a mean of paired differences (Student 1908), and that
    clustered by groups of neighbours (Liang & Zeger 1986), because outputs that shared a batch change together.

    Args:
        then, now: float[n], 0 to 1.
        neighbours: int[n], the number of each output's group of neighbours in the order of sending.
    """
    change = now - then
    estimates = (clustered_se(change, np.arange(len(change))), clustered_se(change, neighbours))
    se, degrees = max(filter(None, estimates), default=(None, 0))
    half_width = None if se is None else t_quantile((1 + CONFIDENCE) / 2, degrees) * se
    difference = mean(change)
    return ScoreComparison(
        scorer=scorer,
        outputs=len(change),
        then=mean(then),
        now=mean(now),
        difference=difference,
        se=se,
        half_width=half_width,
        changed=int(np.count_nonzero(change)),
        answer=_answer(difference, half_width),
    )


def _answer(difference: float, half_width: float | None) -> Literal["as before", "moved", "too few to tell"]:
    if difference == 0:
        return "as before"
    if half_width is None:
        return "too few to tell"
    return "moved" if abs(difference) > half_width else "as before"
