"""What passes generated is read from their tables whole or not at all, and shares of agreement are those of a count."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import ArrayLike

from orderproof.measure.trial_records import TOKENS_SCHEMA
from orderproof.outputs.passes import (
    OutputsError,
    PassOutputs,
    agreement_matrix,
    disagreement_with_controls,
    shuffle_disagreement,
)


def outputs(pass_id: str, arm: str, digests: ArrayLike) -> PassOutputs:
    return PassOutputs(pass_id, arm, np.array(digests, np.int64))


def test_the_matrix_and_the_rates_say_the_same_of_each_pass() -> None:
    dice = np.random.default_rng(8)
    arms = ["control", "control", "control", "candidate", "candidate"]
    passes = [outputs(f"{arm}{k % 3}", arm, dice.integers(0, 3, 50)) for k, arm in enumerate(arms)]
    matrix, rates = agreement_matrix(passes), disagreement_with_controls(passes)
    assert np.array_equal(np.diag(matrix), np.ones(5))
    assert np.array_equal(matrix, matrix.T)
    assert rates["candidate1"] == pytest.approx(1 - matrix[4, :3].mean())
    assert rates["control0"] == pytest.approx(1 - matrix[0, 1:3].mean())  # itself left out


def test_the_only_control_has_no_other_to_disagree_with() -> None:
    passes = [outputs("one", "control", [1, 2]), outputs("two", "candidate", [1, 3])]
    assert disagreement_with_controls(passes) == {"two": 0.5}


def test_shuffle_disagreement_needs_two_passes() -> None:
    with pytest.raises(OutputsError, match="at least two"):
        shuffle_disagreement([outputs("one", "control", [1, 2])])


def test_where_the_control_keeps_its_order_the_pilot_is_the_shuffled_arm() -> None:
    fixed = [outputs(f"control{i}", "control", [1, 1]) for i in range(3)]
    shuffled = [outputs(f"shuffled{i}", "shuffled", [1, i]) for i in range(3)]
    assert shuffle_disagreement([*fixed, *shuffled]).tolist() == [0.0, 1.0]


# Tables in


def table(ids: Sequence[str], tokens: Sequence[Sequence[int] | None], scores: Sequence[float | None]) -> pa.Table:
    rows = [
        {
            "prompt_id": i,
            "sample": 0,
            "position": n,
            "admitted": n,
            "prompt_tokens": 3,
            "token_ids": t,
            "text": "",
            "score": s,
        }
        for n, (i, t, s) in enumerate(zip(ids, tokens, scores, strict=True))
    ]
    return pa.Table.from_pylist(rows, TOKENS_SCHEMA)


def test_rows_in_any_order_give_the_same_outputs() -> None:
    a = table(["x", "y", "z"], [[1], [2, 3], []], [0.0, None, 1.0])
    b = table(["z", "x", "y"], [[], [1], [2, 3]], [1.0, 0.0, None])
    one, other = (PassOutputs.from_tokens("p", "control", t, ["x", "y", "z"]) for t in (a, b))
    assert np.array_equal(one.digests, other.digests)
    assert len(set(one.digests.tolist())) == 3
    assert one.scores is not None
    assert np.array_equal(one.scores, [0.0, np.nan, 1.0], equal_nan=True)


def test_digests_are_the_same_in_every_process_and_every_slice() -> None:
    whole = table(["w", "x", "y"], [[9], [1, 2], [3]], [None] * 3)
    ids = ["x", "y"]
    known = PassOutputs.from_tokens("p", "control", whole.slice(1), ids)
    first_bytes = [hashlib.blake2b(struct.pack(f"<{len(t)}i", *t), digest_size=8).digest() for t in ([1, 2], [3])]
    assert known.digests.tolist() == [int.from_bytes(b, "little", signed=True) for b in first_bytes]
    assert known.scores is None
    chunked = pa.concat_tables([whole.slice(2), whole.slice(1, 1)])
    assert np.array_equal(PassOutputs.from_tokens("p", "control", chunked, ids).digests, known.digests)


def test_outputs_missing_doubled_or_strange_are_named_with_pass_and_prompt() -> None:
    ids = ["x", "y", "z"]
    with pytest.raises(OutputsError, match="pass b03: prompt 'y' has 0 outputs"):
        PassOutputs.from_tokens("b03", "control", table(["x", "z"], [[1], [2]], [None] * 2), ids)
    with pytest.raises(OutputsError, match="pass b03: prompt 'x' has sample 0 where sample 1 is expected"):
        PassOutputs.from_tokens("b03", "control", table(["x", "x", "y", "z"], [[1]] * 4, [None] * 4), ids)
    with pytest.raises(OutputsError, match=r"pass b03.*'w'"):
        PassOutputs.from_tokens("b03", "control", table(["x", "w", "y", "z"], [[1]] * 4, [None] * 4), ids)
    with pytest.raises(OutputsError, match="pass b03: 1 samples have no token_ids"):
        PassOutputs.from_tokens("b03", "control", table(ids, [[1], None, [2]], [None] * 3), ids)
