"""From a trial's folder to its verdict: the one path, used at every look and offline alike.

In: a `Trial`. Out: a `Verdict`, or None while blocks are still to come. Starts no engine and asks no tracker; the same
folder gives the same verdict, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.job.hashing import ids_sha256
from orderproof.measure.trial_store import Block, EvidenceError, Manifest, Pass, Trial
from orderproof.measure.verdict import Verdict, decide
from orderproof.orders.order import Order
from orderproof.orders.shuffled import shuffle
from orderproof.outputs.divergence import first_divergence
from orderproof.outputs.output_change import OutputChange, compare
from orderproof.outputs.passes import CANDIDATE, CONTROL, PassOutputs, rows_in_file_order


def judge(trial: Trial) -> Verdict | None:
    """The verdict of the blocks recorded so far.

    Raises:
        EvidenceError: a recorded pass is not what was registered (its order, its prompts), its rates are not its
            figures', or it has no tokens.
    """
    spoilt = _spoilt_block(trial)
    blocks = trial.blocks()
    rule = trial.manifest.rule
    if not spoilt and len(blocks) not in rule.looks:
        return None
    refuse_unregistered(trial)
    ratios = [log_ratio(block, rule.metric) for block in blocks]
    return decide(ratios, rule, compare_outputs(trial, blocks) if blocks and not spoilt else None, invalid=spoilt)


def refuse_unregistered(trial: Trial) -> None:
    """Hold every pass against the plan and against its own figures.

    Raises:
        EvidenceError: an order that was not registered for its arm and block, or a rate that is not count over time.
    """
    for timed in (timed for timed in trial.passes if timed.block):
        where, planned = f"{trial.folder}: pass {timed.pass_id}", trial.manifest
        if timed.arm not in planned.arms or not 0 < timed.block <= len(planned.shuffle_seeds):
            raise EvidenceError(f"{where} is of no arm or no block of the plan")
        if not _sent_as_registered(planned, timed):
            raise EvidenceError(f"{where} was not sent in the order that was registered for {timed.arm}")
        rates = (timed.throughput_req_s, timed.throughput_tok_s)
        if timed.wall_s <= 0 or rates != (timed.requests / timed.wall_s, timed.output_tokens / timed.wall_s):
            raise EvidenceError(f"{where} has rates that are not its requests and tokens over its seconds")


def _sent_as_registered(planned: Manifest, timed: Pass) -> bool:
    fixed = {CANDIDATE: planned.candidate, CONTROL: planned.control}.get(timed.arm)
    if fixed:
        return timed.order_sha256 == fixed.sha256
    seed = planned.shuffle_seeds[timed.block - 1]
    shuffled = Order(shuffle(planned.prompts_measured, seed), "shuffled")
    return (timed.seed, timed.order_sha256) == (seed, shuffled.sha256)


def is_vacuous(sampling: Mapping[str, Any]) -> bool:
    """Agreement of outputs says nothing: at vLLM's default temperature of 1 two passes differ wherever they may.

    A seed makes them comparable again.
    """
    temperature = sampling.get("temperature")
    return (1.0 if temperature is None else float(temperature)) >= 1.0 and sampling.get("seed") is None


def log_ratio(block: Block, metric: str) -> float:
    """ln(rate_candidate / rate_control); NaN where a rate is zero."""
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


def compare_outputs(trial: Trial, blocks: list[Block]) -> OutputChange:
    """Disagreement of the counted passes' outputs, and where they part."""
    passes, ids, position = pass_outputs(trial, blocks)
    return compare(
        passes,
        position,
        int(trial.manifest.engine["max_num_seqs"]),
        vacuous=is_vacuous(trial.manifest.sampling),
        first_divergence=first_divergence(
            passes, ids, lambda pass_id: trial.tokens(pass_id, ["prompt_id", "token_ids"])
        ),
    )


def pass_outputs(trial: Trial, blocks: list[Block]) -> tuple[list[PassOutputs], list[str], NDArray[np.int64]]:
    """Of every counted pass, in time order, what it generated.

    Returns:
        the passes' digests; the prompts' ids, one a row of a digest; int64[N], each prompt's place in the candidate's
        order.

    Raises:
        EvidenceError: no block counts, or its prompts are not those that were registered.
    """
    counted = {timed.pass_id for block in blocks for timed in block.passes.values()}
    timed_passes = [timed for timed in trial.passes if timed.pass_id in counted]
    if not timed_passes:
        raise EvidenceError(f"{trial.folder}: no block counts, so there is nothing to compare")
    columns = ["prompt_id", "token_ids", "score", "position"]
    ids = sorted(trial.tokens(timed_passes[0].pass_id, ["prompt_id"])["prompt_id"].to_pylist())
    if ids_sha256(ids) != trial.manifest.measured_sha256:
        raise EvidenceError(f"{trial.folder}: {timed_passes[0].pass_id} is not of the prompts that were registered")
    passes, position = [], np.arange(len(ids))
    for timed in timed_passes:
        table = trial.tokens(timed.pass_id, columns)
        passes.append(PassOutputs.from_tokens(timed.pass_id, timed.arm, table, ids))
        if timed.arm == CANDIDATE:
            position = table["position"].to_numpy()[rows_in_file_order(timed.pass_id, table, ids)]
    return passes, ids, position
