"""What each pass generated, as one digest (and score) per prompt, and on how many prompts two passes agree."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderproof.outputs.disagreement import Float64, Int64, Pairs, count_pairs
from orderproof.outputs.errors import OutputsError as OutputsError
from orderproof.outputs.samples import join_samples

CONTROL, CANDIDATE, SHUFFLED = "control", "candidate", "shuffled"


@dataclass(frozen=True)
class PassOutputs:
    """What one pass generated; row i is prompt i in the file's order."""

    pass_id: str
    arm: str  # control | candidate | shuffled
    digests: Int64  # [N]; equal exactly if the generated tokens are equal
    scores: Float64 | None = None  # [N], 0 to 1, NaN where a prompt has no reference; None: no prompt has

    @classmethod
    def from_tokens(cls, pass_id: str, arm: str, table: pa.Table, ids: Sequence[str]) -> PassOutputs:
        """Read what a pass generated from its tokens table.

        Args:
            table: rows in any order, with `prompt_id`, `token_ids`, if there are several samples `sample` (from 0), and
                if scored `score`.
            ids: the measured prompts, in the file's order.

        Raises:
            OutputsError: a prompt has no output or two, or was not measured.
        """
        table = join_samples(pass_id, table)
        rows = rows_in_file_order(pass_id, table, ids)
        digests = [_digests(pass_id, chunk) for chunk in table["token_ids"].chunks]
        scores = None
        if "score" in table.column_names and table["score"].null_count < table.num_rows:
            scores = table["score"].cast(pa.float64()).to_numpy()[rows]  # null becomes NaN
        return cls(pass_id, arm, np.concatenate([np.empty(0, np.int64), *digests])[rows], scores)


def rows_in_file_order(pass_id: str, table: pa.Table, ids: Sequence[str]) -> Int64:
    """int64[N]: the table's row that holds prompt i of `ids`. Raises OutputsError unless each has exactly one row."""
    sent = table["prompt_id"].cast(pa.string())
    index = pc.fill_null(pc.index_in(sent, value_set=pa.array(ids, pa.string())), -1).to_numpy()
    if (index < 0).any():
        stray = sent[int(np.argmin(index))].as_py()
        raise OutputsError(f"pass {pass_id}: it has an output for prompt {stray!r}, which this trial does not measure")
    times = np.bincount(index, minlength=len(ids))
    if (times != 1).any():
        first = int(np.argmax(times != 1))
        raise OutputsError(
            f"pass {pass_id}: prompt {ids[first]!r} has {times[first]} outputs instead of one "
            f"({int((times == 0).sum())} have none, {int((times > 1).sum())} have several): measure the job again"
        )
    rows = np.empty(len(ids), np.int64)
    rows[index] = np.arange(len(ids))
    return rows


def _digests(pass_id: str, lists: pa.ListArray) -> Int64:
    """int64[n]: the first 8 bytes of BLAKE2b of each list's tokens as little-endian int32."""
    if lists.null_count:
        raise OutputsError(f"pass {pass_id}: {lists.null_count} requests have no token_ids, so it cannot be compared")
    tokens = memoryview(np.ascontiguousarray(lists.values.to_numpy(), dtype="<i4").tobytes())
    bounds = (lists.offsets.to_numpy().astype(np.int64) * 4).tolist()
    pieces = (hashlib.blake2b(tokens[a:b], digest_size=8).digest() for a, b in pairwise(bounds))
    return np.frombuffer(b"".join(pieces), dtype="<i8").astype(np.int64)


def arm_of_shuffles(passes: Sequence[PassOutputs]) -> str:
    """The arm whose passes differ by reshuffling alone."""
    return SHUFFLED if any(p.arm == SHUFFLED for p in passes) else CONTROL


def agreement_matrix(passes: Sequence[PassOutputs]) -> Float64:
    """float64[P, P]: the share of prompts on which two passes generated the same tokens; 1 on the diagonal."""
    prompts = count_prompts(passes)
    agreement: Float64 = 1 - pairs_of(passes).differing / prompts
    return agreement


def disagreement_with_controls(passes: Sequence[PassOutputs]) -> dict[str, float]:
    """Pass id → mean share of prompts on which it disagrees with the control passes, itself left out.

    A pass that has no control pass but itself is absent.
    """
    prompts = count_prompts(passes)
    control = np.array([p.arm == CONTROL for p in passes])
    others = control.sum() - control
    totals = pairs_of(passes).differing[:, control].sum(axis=1)
    return {p.pass_id: int(t) / (int(n) * prompts) for p, t, n in zip(passes, totals, others, strict=True) if n}


def shuffle_disagreement(passes: Sequence[PassOutputs]) -> Float64:
    """float64[N]: per prompt, the share of pairs of shuffled passes that disagree. Raises OutputsError below two."""
    count_prompts(passes)
    shuffles = arm_of_shuffles(passes)
    if sum(p.arm == shuffles for p in passes) < 2:
        raise OutputsError(
            f"shuffles can only be compared with each other: at least two passes of the arm {shuffles} are needed"
        )
    return pairs_of(passes, shuffles).within_rate()


def pairs_of(passes: Sequence[PassOutputs], shuffles: str = CONTROL) -> Pairs:
    return count_pairs([p.digests for p in passes], [p.arm for p in passes], shuffles, CANDIDATE)


def count_prompts(passes: Sequence[PassOutputs]) -> int:
    """The number of prompts N, the same in every pass."""
    if not passes or not len(passes[0].digests):
        raise OutputsError("there are no outputs to compare")
    first, known = passes[0], set[str]()
    prompts = len(first.digests)
    for p in passes:
        if p.pass_id in known:
            raise OutputsError(f"pass {p.pass_id} is given twice, which would count as agreement")
        known.add(p.pass_id)
        if len(p.digests) != prompts or (p.scores is not None and len(p.scores) != prompts):
            raise OutputsError(f"pass {p.pass_id} has {len(p.digests)} outputs, and pass {first.pass_id} has {prompts}")
    return prompts
