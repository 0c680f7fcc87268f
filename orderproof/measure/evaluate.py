"""From a trial's folder to its verdict: the one path, used at every look and offline alike.

The same folder gives the same verdict, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from orderproof.job.hashing import ids_sha256
from orderproof.measure.estimator import SliceTable
from orderproof.measure.parts import prefix_gain
from orderproof.measure.slice_design import lay_out_block, shuffle_of_block
from orderproof.measure.trial_records import Manifest, SliceRecord
from orderproof.measure.trial_store import Block, EvidenceError, Trial
from orderproof.measure.verdict import Evidence, Noise, Verdict, noise_between, reach_verdict
from orderproof.orders.order import Order
from orderproof.outputs.divergence import first_divergence
from orderproof.outputs.output_change import OutputChange, compare
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED, PassOutputs, rows_in_file_order


def judge(trial: Trial) -> Verdict | None:
    """The verdict of the blocks recorded so far; None: a look is ahead.

    Raises:
        EvidenceError: a recorded slice is not what was registered (its order, its coin), or has no tokens.
    """
    failing = _failing_block(trial)
    blocks, rule = trial.blocks(), trial.manifest.rule
    out_of_time = is_out_of_time(trial)
    if not failing and not out_of_time and len(blocks) not in rule.looks:
        return None
    refuse_unregistered(trial)
    outputs = compare_outputs(trial, blocks) if blocks and not failing else None
    evidence = evidence_of(trial) if blocks else None
    noise = control_noise(trial) if len(blocks) >= 2 else None
    return reach_verdict(evidence, rule, outputs, noise=noise, invalid=failing, out_of_time=out_of_time)


def is_out_of_time(trial: Trial) -> bool:
    """Whether the registered budget of time leaves no room for the blocks up to the next look."""
    blocks, rule = trial.blocks(), trial.manifest.rule
    if rule.budget_s is None or not blocks:
        return False
    spent = sum(block.passes[CONTROL].block_s for block in blocks)
    ahead = next((look - len(blocks) for look in rule.looks if look > len(blocks)), 0)
    return spent + ahead * spent / len(blocks) > rule.budget_s


def evidence_of(trial: Trial) -> Evidence:
    """The complete blocks as numbers."""
    fed = trial.manifest.slices.kind == "fed"
    parts = [part for block in trial.blocks() for (arm, _), part in block.slices.items() if arm != SHUFFLED]
    foreign = 0.0
    if fed:
        for arm in (CANDIDATE, CONTROL):
            own = [part for part in parts if part.arm == arm]
            tokens = sum(part.window_output_tokens for part in own)
            foreign += sum(part.foreign_tokens for part in own) / tokens if tokens else 0.0
    lengths = lengths_of(trial) if fed else None
    return Evidence(slice_table(trial), lengths, prefix_gain(trial), min(foreign, 0.99))


def slice_table(trial: Trial) -> SliceTable:
    """Seconds and work of the complete blocks' pairs, by block and stratum."""
    cost = trial.manifest.slices.warm_up.prefill_cost
    clean = trial.manifest.slices.kind == "clean"

    def work(part: SliceRecord) -> float:
        return part.requests if clean else part.window_output_tokens + cost * part.window_prompt_tokens

    def first(part: SliceRecord) -> float:
        return 1.0 if part.turn == 0 else -1.0

    candidate, control = ([_of_arm(block, arm) for block in trial.blocks()] for arm in (CANDIDATE, CONTROL))
    return SliceTable(
        _array(candidate, lambda part: part.seconds),
        _array(control, lambda part: part.seconds),
        _array(candidate, work),
        _array(control, work),
        _array(candidate, first),
    )


def lengths_of(trial: Trial) -> SliceTable:
    """Generated tokens of whole slices in the times' place, requests as work."""
    candidate, control = ([_of_arm(block, arm) for block in trial.blocks()] for arm in (CANDIDATE, CONTROL))
    tokens = _array(candidate, lambda part: part.output_tokens)
    return SliceTable(
        tokens,
        _array(control, lambda part: part.output_tokens),
        _array(candidate, lambda part: part.requests),
        _array(control, lambda part: part.requests),
        np.ones_like(tokens),
    )


def control_noise(trial: Trial) -> Noise | None:
    """The machine's own noise: slices of shuffles against each other, in pairs of neighbours in time."""
    arm = SHUFFLED if SHUFFLED in trial.manifest.arms else CONTROL
    cost = trial.manifest.slices.warm_up.prefill_cost
    clean = trial.manifest.slices.kind == "clean"
    pairs = trial.manifest.slices.strata // 2
    rows = []  # [blocks][pairs][the five columns of a table]
    for block in trial.blocks():
        parts = sorted(_of_arm(block, arm), key=lambda part: part.start_s)[: 2 * pairs]
        work = [p.requests if clean else p.window_output_tokens + cost * p.window_prompt_tokens for p in parts]
        coins = np.random.default_rng([trial.manifest.coin_seed, block.number, 1]).permutation(np.arange(pairs) % 2)
        row = []
        for pair, coin in enumerate(coins.tolist()):
            one, other = 2 * pair + coin, 2 * pair + 1 - coin
            row.append((parts[one].seconds, parts[other].seconds, work[one], work[other], 1.0 - 2 * coin))
        rows.append(row)
    columns = np.moveaxis(np.array(rows, np.float64), -1, 0)
    table = SliceTable(columns[0], columns[1], columns[2], columns[3], columns[4])
    return noise_between(table, trial.manifest.rule) if table.measurable else None


def _of_arm(block: Block, arm: str) -> list[SliceRecord]:
    return [part for (name, _), part in sorted(block.slices.items()) if name == arm]


def _array(blocks: Sequence[Sequence[SliceRecord]], value: Callable[[SliceRecord], float]) -> NDArray[np.float64]:
    return np.array([[float(value(part)) for part in block] for block in blocks], np.float64)


def refuse_unregistered(trial: Trial) -> None:
    """Hold every slice of the complete blocks against the plan.

    Raises:
        EvidenceError: a slice is missing, or was not sent in the order, at the place or after the coin registered.
    """
    planned = trial.manifest
    for block in trial.blocks():
        expected = _registered_slices(planned, block.number)
        if set(block.slices) != set(expected):
            raise EvidenceError(f"{trial.folder}: block {block.number} has not one slice of each arm and stratum")
        for key, part in block.slices.items():
            where = f"{trial.folder}: block {block.number}, {part.arm} slice of stratum {part.stratum}"
            if part.order_sha256 != _registered_order(planned, part):
                raise EvidenceError(f"{where} was not sent in the order that was registered")
            first, turn = expected[key]
            if part.first != first or (part.attempt == 0 and part.turn != turn):
                raise EvidenceError(f"{where} was not sent where the plan's seed puts it")


def _registered_slices(planned: Manifest, block: int) -> dict[tuple[str, int], tuple[int, int]]:
    """By arm and stratum, the place of the first prompt in the arm's order, and the turn in its pair."""
    anything = np.arange(planned.prompts_measured)
    layout = lay_out_block(
        planned.slices.sizes,
        anything,
        anything if planned.control else None,
        third_arm=SHUFFLED in planned.arms,
        seeds=(planned.coin_seed, block),
    )
    return {(part.arm, part.stratum): (part.first, part.turn) for part in layout}


def _registered_order(planned: Manifest, part: SliceRecord) -> str:
    fixed = {CANDIDATE: planned.candidate, CONTROL: planned.control}.get(part.arm)
    if fixed:
        return fixed.sha256
    return Order(shuffle_of_block(planned.prompts_measured, (planned.coin_seed, part.block)), "shuffled").sha256


def is_vacuous(sampling: Mapping[str, Any]) -> bool:
    """Agreement of outputs says nothing: at vLLM's default temperature of 1 two passes differ wherever they may.

    A seed makes them comparable again.
    """
    temperature = sampling.get("temperature")
    return (1.0 if temperature is None else float(temperature)) >= 1.0 and sampling.get("seed") is None


def _failing_block(trial: Trial) -> str | None:
    """Why the newest block never became complete: requests that failed in every attempt."""
    if not trial.slices:
        return None
    number, run = trial.slices[-1].block, trial.slices[-1].run
    last = {(part.arm, part.stratum): part for part in trial.attempt_slices(number, run)}
    bad = [part for part in last.values() if part.failed or part.cut_short]
    tries = 1 + int(trial.manifest.validity["repeats"])
    if any(part.attempt + 1 == tries for part in bad):
        reasons = sorted({reason for part in bad for reason in part.repeat})
        return f"block {number} stayed incomplete in {tries} attempts: {'; '.join(reasons)}"
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
            passes, ids, lambda pass_id: trial.tokens(pass_id, ["prompt_id", "sample", "token_ids"])
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
    columns = ["prompt_id", "sample", "token_ids", "score", "position"]
    ids = sorted(set(trial.tokens(timed_passes[0].pass_id, ["prompt_id"])["prompt_id"].to_pylist()))
    if ids_sha256(ids) != trial.manifest.measured_sha256:
        raise EvidenceError(f"{trial.folder}: {timed_passes[0].pass_id} is not of the prompts that were registered")
    passes, position = [], np.arange(len(ids))
    for timed in timed_passes:
        table = trial.tokens(timed.pass_id, columns)
        passes.append(PassOutputs.from_tokens(timed.pass_id, timed.arm, table, ids))
        if timed.arm == CANDIDATE:
            one_each = table.filter(pc.equal(table["sample"], 0))
            position = one_each["position"].to_numpy()[rows_in_file_order(timed.pass_id, one_each, ids)]
    return passes, ids, position
