"""What a change of outputs means for a verdict, under the job's policy `proven` or `not_worse`."""

from __future__ import annotations

from typing import Literal

from orderproof.outputs.output_change import TOLERANCE, OutputChange, ScoreChange

Policy = Literal["proven", "not_worse"]
Standing = Literal["allowed", "unproven", "worse"]


def judge_outputs(outputs: OutputChange | None, policy: Policy) -> tuple[Standing, str]:
    """Whether the outputs allow a promotion, withhold it, or are worse; and a sentence that says so.

    Where agreement is vacuous, only scores can decide. A drop of scores is proven when the whole two-sided 90 %
    interval lies under the tolerance; it is symmetric, so its upper end is 2·difference − low.
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
    lenient: Standing = "allowed" if policy == "not_worse" else "unproven"
    if outputs.vacuous:
        return lenient, "Outputs were not judged: their agreement is chance at this sampling, and nothing is scored."
    if outputs.excess is None:
        return "unproven", "Too few blocks for comparing outputs."
    if outputs.answer == "as_reshuffling":
        return "allowed", f"Outputs changed no more than reshuffling changes them: {_excess(outputs)}."
    return lenient, f"Whether outputs changed more than reshuffling changes them is undecided: {_excess(outputs)}."


def _excess(outputs: OutputChange) -> str:
    """In points: hundredths of the prompts."""
    assert outputs.excess is not None
    if outputs.low is None or outputs.high is None:
        return f"{100 * outputs.excess:+z.1f} points"
    return f"{100 * outputs.excess:+z.1f} points ({100 * outputs.low:+z.1f} to {100 * outputs.high:+z.1f})"


def _scores(scores: ScoreChange) -> str:
    bound = "unknown" if scores.low is None else f"{100 * scores.low:+.1f}"
    return f"{100 * scores.difference:+.1f} points, lower bound {bound}"
