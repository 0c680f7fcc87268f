"""What a job's earlier trials mean for the next one: the α that is spent, the noise to expect, how far outputs move."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

from orderproof.job.model import ModelFacts
from orderproof.job.redaction import recorded_args, same_settings
from orderproof.job.spec import Job
from orderproof.measure.estimator import estimate
from orderproof.measure.evaluate import is_vacuous, judge, pass_outputs, slice_table
from orderproof.measure.trial_records import Manifest
from orderproof.measure.trial_store import EvidenceError, History, Trial
from orderproof.measure.verdict import Rule, detectable_gain
from orderproof.outputs.output_change import detectable_excess
from orderproof.outputs.passes import OutputsError, shuffle_disagreement


def attempts(history: History, question: str) -> int:
    """Trials that had a chance to answer the question already.

    One counts from its first whole block, since whoever stopped it could have seen that; and so does every trial that
    cannot be read any more, whatever it asked: losing evidence must not win back α.
    """
    asked = [trial for trial in history.trials if trial.manifest.question == question and trial.blocks()]
    return len(asked) + len(history.unreadable)


@dataclass(frozen=True)
class Noise:
    """How much a trial's gain varies, from trials that came to an end."""

    se_of_a_block: float  # standard error of log_gain after a single block
    strata: int
    effective_strata: float

    def detectable(self, rule: Rule) -> float:
        """The smallest gain that the rule's last look promotes with 80 % power."""
        return detectable_gain(self.se_of_a_block, self.strata, self.effective_strata, rule)


def noise_before(job: Job, model: ModelFacts, history: History) -> Noise | None:
    """The noise of earlier trials on this model and engine, pooled over their blocks; None without any."""
    seen = []
    for trial in history.trials:
        blocks = trial.blocks()
        if _same_engine(job, model, trial.manifest) and len(blocks) > 1:
            with contextlib.suppress(ValueError):  # times that cannot be: its verdict was `invalid`
                seen.append(estimate(slice_table(trial)))
    if not seen:
        return None
    blocks_in_all = sum(one.blocks for one in seen)
    variance = sum(one.blocks * float(one.se) ** 2 * one.blocks for one in seen) / blocks_in_all
    return Noise(math.sqrt(variance), seen[-1].strata, float(seen[-1].effective_strata))


def stopped_trial(history: History, settings: str, arms: tuple[str, ...]) -> Trial | None:
    """The newest trial, if it had the same settings and was stopped before its verdict."""
    newest = history.trials[-1] if history.trials else None
    if newest is None or (newest.manifest.settings, newest.manifest.arms) != (settings, arms):
        return None
    if any(newest.folder.name < name for name in history.unreadable):
        return None
    try:
        return newest if judge(newest) is None else None
    except EvidenceError:
        return None


def detectable_excess_before(
    job: Job, model: ModelFacts, dataset_md5: str, history: History, prompts: int, blocks: int
) -> float | None:
    """The smallest excess of changed outputs that a trial would call so, from the newest trial that can be its pilot.

    Args:
        prompts, blocks: of the trial to come, at its last look.

    Returns:
        a fraction of prompts; None without a pilot, or where no excess could be told.
    """
    if is_vacuous(job.sampling):
        return None
    for trial in reversed(history.trials):
        then = trial.manifest
        same = _same_engine(job, model, then) and (then.dataset_md5, then.sampling) == (dataset_md5, job.sampling)
        blocks_then = trial.blocks()
        if not same or len(blocks_then) < 2:
            continue
        try:
            passes, _, _ = pass_outputs(trial, blocks_then)
            excess = detectable_excess(shuffle_disagreement(passes), prompts, job.engine.max_num_seqs, blocks)
        except (EvidenceError, OutputsError):  # its rates stand, its outputs are gone
            continue
        return excess if math.isfinite(excess) else None
    return None


def _same_engine(job: Job, model: ModelFacts, then: Manifest) -> bool:
    measured_on, replicas = then.model["fingerprint"], then.engine.get("replicas", 1)
    if (measured_on, replicas) != (model.fingerprint, job.engine.replicas):
        return False
    return same_settings(then.engine["args"], recorded_args(job))
