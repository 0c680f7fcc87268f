"""From a trial's folder to its verdict: the one path, used at every look and offline alike.

In: a `Trial`. Out: a `Verdict`, or None while blocks are still to come. Starts no engine and asks no tracker; the same
folder gives the same verdict, bit for bit.
"""

from __future__ import annotations

import math

import numpy as np

from orderproof.tasks.evidence import CANDIDATE, CONTROL, SHUFFLED, Block, EvidenceError, Trial
from orderproof.tasks.outputs import OutputChange, PassOutputs, compare
from orderproof.tasks.verdict import Verdict, decide


def judge(trial: Trial) -> Verdict | None:
    """The verdict of the blocks recorded so far.

    Raises:
        EvidenceError: a recorded pass has no tokens, or not of the measured prompts.
    """
    spoilt = _spoilt_block(trial)
    blocks = trial.blocks()
    rule = trial.manifest.rule
    if not spoilt and len(blocks) not in rule.looks:
        return None
    ratios = [_log_ratio(block, rule.metric) for block in blocks]
    return decide(ratios, rule, compare_outputs(trial, blocks) if blocks and not spoilt else None, invalid=spoilt)


def _log_ratio(block: Block, metric: str) -> float:
    candidate, control = (getattr(block.passes[arm], metric) for arm in (CANDIDATE, CONTROL))
    return math.log(candidate / control) if candidate > 0 and control > 0 else math.nan


def _spoilt_block(trial: Trial) -> str | None:
    """Why the trial is invalid: a block whose every permitted attempt was."""
    permitted = 1 + int(trial.manifest.validity["repeats"])
    counted = {block.number for block in trial.blocks()}
    for number, attempts in trial.block_attempts().items():
        whole = [attempt for attempt in attempts if len(attempt) == len(trial.manifest.arms)]
        if number not in counted and len(whole) >= permitted:
            reasons = dict.fromkeys(reason for attempt in whole for timed in attempt for reason in timed.invalid)
            return f"block {number} stayed invalid in {len(whole)} attempts: {'; '.join(reasons)}"
    return None


def compare_outputs(trial: Trial, blocks: list[Block]) -> OutputChange | None:
    """Disagreement of the counted passes' outputs; the floor is that of reshuffling."""
    passes, position = pass_outputs(trial, blocks)
    floor = SHUFFLED if SHUFFLED in trial.manifest.arms else CONTROL
    # A fixed control agrees with itself as far as the engine does; what reshuffling changes is seen in the third arm.
    compared = [
        PassOutputs(p.pass_id, CONTROL if p.arm == floor else p.arm, p.digests, p.scores)
        for p in passes
        if p.arm in (floor, CANDIDATE)
    ]
    vacuous = float(trial.manifest.sampling.get("temperature", 1.0)) >= 1.0 and "seed" not in trial.manifest.sampling
    return compare(compared, position, int(trial.manifest.engine["max_num_seqs"]), vacuous=vacuous)


def pass_outputs(trial: Trial, blocks: list[Block]) -> tuple[list[PassOutputs], np.ndarray]:
    """Digests of every counted pass, rows by prompt id, and each prompt's place in the candidate's order."""
    ids: list[str] | None = None
    position: np.ndarray | None = None
    passes = []
    for block in blocks:
        for timed in block.passes.values():
            table = trial.tokens(timed.pass_id, ["prompt_id", "token_ids", "score", "position"])
            if ids is None:
                ids = sorted(table["prompt_id"].to_pylist())
            passes.append(PassOutputs.from_tokens(timed.pass_id, timed.arm, table, ids))
            if timed.arm == CANDIDATE and position is None:
                row = {prompt: place for place, prompt in enumerate(ids)}
                position = np.empty(len(ids), np.int64)
                for prompt, place in zip(table["prompt_id"].to_pylist(), table["position"].to_pylist(), strict=True):
                    position[row[prompt]] = place
    if position is None:
        raise EvidenceError(f"{trial.folder}: no block counts, so there is nothing to compare")
    return passes, position
