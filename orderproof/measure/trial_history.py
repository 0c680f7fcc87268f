"""What a job's earlier trials tell the next one: the α that is spent, the noise to expect, how far outputs move.

In: a `History`. Out: numbers for a plan. Decides nothing.
"""

from __future__ import annotations

import math

import numpy as np

from orderproof.job.model import ModelFacts
from orderproof.job.spec import Job
from orderproof.measure.evaluate import is_vacuous, log_ratio, pass_outputs
from orderproof.measure.trial_store import EvidenceError, History, Manifest
from orderproof.outputs.output_change import detectable_excess
from orderproof.outputs.passes import OutputsError, shuffle_disagreement


def attempts(history: History, question: str) -> int:
    """Trials that had a chance to answer the question already.

    One counts from its first whole block, since whoever stopped it could have seen that; and so does every trial that
    cannot be read any more, whatever it asked: losing evidence must not win back α.
    """
    asked = [trial for trial in history.trials if trial.manifest.question == question and trial.blocks()]
    return len(asked) + len(history.unreadable)


def noise_sd(job: Job, model: ModelFacts, history: History) -> float | None:
    """Pooled standard deviation of blocks' log ratios in earlier trials on this model and engine; None without any."""
    squares, freedom = 0.0, 0
    for trial in history.trials:
        manifest = trial.manifest
        if not _same_engine(job, model, manifest):
            continue
        ratios = np.array([log_ratio(block, manifest.rule.metric) for block in trial.blocks()])
        if len(ratios) > 1 and np.isfinite(ratios).all():  # otherwise its verdict was `invalid`
            squares += float(((ratios - ratios.mean()) ** 2).sum())
            freedom += len(ratios) - 1
    return math.sqrt(squares / freedom) if freedom else None


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
    replicas = then.engine.get("replicas", 1)
    same = (then.engine["args"], replicas) == (job.engine.args, job.engine.replicas)
    return bool(then.model["fingerprint"] == model.fingerprint and same)
