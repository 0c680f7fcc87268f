"""Claims about orderproof.outputs.divergence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from orderproof.outputs.divergence import first_divergence, most_different
from orderproof.outputs.passes import OutputsError, PassOutputs

Outputs = dict[str, list[int]]


def tokens_table(outputs: Outputs, sent: Sequence[str] | None = None) -> pa.Table:
    """A pass's tokens, rows in the order in which they were sent."""
    ids = list(sent or outputs)
    lists = pa.array([outputs[i] for i in ids], pa.list_(pa.int32()))
    texts = [" ".join(map(str, outputs[i])) for i in ids]
    return pa.table({"prompt_id": ids, "token_ids": lists, "text": texts})


def figures(passes: dict[tuple[str, str], Outputs]) -> dict[str, dict[str, float | None]]:
    ids = sorted(next(iter(passes.values())))
    tables = {name: tokens_table(outputs, list(reversed(ids))) for (name, _), outputs in passes.items()}
    made = [PassOutputs.from_tokens(name, arm, tables[name], ids) for name, arm in passes]
    return first_divergence(made, ids, tables.__getitem__)


def test_the_first_differing_token_is_counted_from_zero() -> None:
    same = {"a": [1, 2, 3, 4], "b": [5, 6], "c": []}
    moved = {"a": [1, 2, 9, 4], "b": [5, 6], "c": []}
    found = figures({("1", "control"): same, ("2", "control"): same, ("3", "candidate"): moved})
    assert found["aa"] == dict.fromkeys(("share_within_8", "q25", "median", "q75")) | {"pairs": 1, "diverged": 0}
    assert found["ab"] == {"pairs": 1, "diverged": 1, "share_within_8": 1.0, "q25": 2.0, "median": 2.0, "q75": 2.0}


def test_an_output_that_begins_the_other_parts_where_it_ends() -> None:
    found = figures({("1", "control"): {"a": [1, 2, 3], "b": []}, ("2", "control"): {"a": [1, 2], "b": [4]}})
    assert found["aa"]["diverged"] == 2
    assert (found["aa"]["q25"], found["aa"]["q75"]) == (0.5, 1.5)  # quartiles of 0 and 2


def test_the_floor_comes_from_the_shuffled_arm_where_there_is_one() -> None:
    same, moved = {"a": [1, 2]}, {"a": [1, 3]}
    found = figures(
        {
            ("1", "control"): moved,
            ("2", "shuffled"): same,
            ("3", "candidate"): same,
            ("4", "control"): same,
            ("5", "shuffled"): same,
            ("6", "candidate"): same,
        }
    )
    assert (found["aa"]["pairs"], found["aa"]["diverged"]) == (1, 0)
    assert (found["ab"]["pairs"], found["ab"]["diverged"]) == (2, 0)


def test_first_differences_agree_with_a_walk_token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orderproof.outputs.divergence.CHUNK_PROMPTS", 7)  # so that chunks' borders are crossed
    dice = np.random.default_rng(3)
    one, other = (
        {f"p{i:03}": dice.integers(0, 2, dice.integers(0, 12)).tolist() for i in range(200)} for _ in range(2)
    )
    expected = []
    for a, b in zip(one.values(), other.values(), strict=True):
        if a != b:
            walk = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
            expected.append(walk[0] if walk else min(len(a), len(b)))
    found = figures({("1", "control"): one, ("2", "control"): other})["aa"]
    assert found["diverged"] == len(expected)
    assert [found[q] for q in ("q25", "median", "q75")] == np.percentile(expected, (25, 50, 75)).tolist()
    assert found["share_within_8"] == np.mean(np.array(expected) < 8)


def test_the_least_alike_outputs_are_shown_first_with_both_texts() -> None:
    control = {"far": [1, 2, 3, 4], "same": [7, 7], "near": [1, 2, 3, 4], "late": [1, 2, 3, 4]}
    candidate = {"far": [5, 6, 7, 8], "same": [7, 7], "near": [9, 2, 3, 4], "late": [1, 2, 3, 9]}
    ids = list(control)
    found = most_different(tokens_table(control), tokens_table(candidate, ["late", "near", "same", "far"]), ids)
    assert [pair.prompt_id for pair in found] == ["far", "near", "late"]
    assert (found[0].similarity, found[0].control, found[0].candidate) == (0.0, "1 2 3 4", "5 6 7 8")
    assert [pair.first_divergence for pair in found] == [0, 0, 3]


def test_no_more_than_k_are_shown() -> None:
    control, candidate = ({f"p{i}": [i, n] for i in range(30)} for n in (1, 2))
    assert len(most_different(tokens_table(control), tokens_table(candidate), list(control), k=4)) == 4


def test_a_missing_output_is_named() -> None:
    with pytest.raises(OutputsError, match="pass candidate: prompt 'b' has 0 outputs"):
        most_different(tokens_table({"a": [1], "b": [2]}), tokens_table({"a": [1]}), ["a", "b"])
