"""The outputs: a row for each sample of each prompt, in the file's order, however large the job is."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orderproof.engines.protocol import Completion
from orderproof.generate import delivery
from orderproof.generate.delivery import OUTPUTS_SCHEMA, outputs_table
from tests.support.batches import generate, make_project, output_ids, promote_label_order
from tests.support.results import make_result

PROMPTS = 22


def test_every_sample_has_a_row_with_all_that_was_generated() -> None:
    logprobs = [[(5, -0.5, "a"), (6, -1.5, "b")]]
    completions = (
        Completion([5], "a", "stop", "\n", logprobs=logprobs),
        Completion([6, 7], "bc", "stop", 7),
        Completion([], "", "length"),
    )
    rows = outputs_table([make_result(3, completions=completions, asked_samples=3)]).to_pylist()
    assert [(row["id"], row["sample"], row["text"], row["token_ids"]) for row in rows] == [
        ("p3", 0, "a", [5]),
        ("p3", 1, "bc", [6, 7]),
        ("p3", 2, "", []),
    ]
    assert [row["finish_reason"] for row in rows] == ["stop", "stop", "length"]
    assert [(row["stop_reason"], row["stop_token_id"]) for row in rows] == [("\n", None), (None, 7), (None, None)]
    assert [(row["prompt_tokens"], row["output_tokens"]) for row in rows] == [(3, 1), (3, 2), (3, 0)]
    likeliest = [{"token_id": 5, "logprob": -0.5, "text": "a"}, {"token_id": 6, "logprob": -1.5, "text": "b"}]
    assert [row["logprobs"] for row in rows] == [[likeliest], None, None]
    assert [row["error"] for row in rows] == [None] * 3


def test_a_prompt_that_failed_has_a_row_for_each_sample_that_was_requested() -> None:
    rows = outputs_table([make_result(0, completions=(), error="too long"), make_result(1)]).to_pylist()
    assert [(row["id"], row["sample"]) for row in rows] == [("p0", 0), ("p0", 1), ("p1", 0), ("p1", 1)]
    for row in rows[:2]:
        assert (row["text"], row["token_ids"], row["finish_reason"], row["error"]) == (None, [], "failed", "too long")


def test_outputs_of_many_groups_and_suites_are_in_the_files_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "ROWS_PER_GROUP", 4)
    monkeypatch.setattr(delivery, "ROWS_PER_SUITE", 8)
    job = make_project(tmp_path / "p", PROMPTS)
    promote_label_order(job)
    generate(job)
    assert output_ids(job) == [f"p{k}" for k in range(PROMPTS)]
    assert pq.read_schema(job.paths.outputs).equals(OUTPUTS_SCHEMA)
    assert [path.name for path in sorted(job.paths.validation_dir.glob("from-*"))] == [
        f"from-{start:09d}" for start in (0, 8, 16)
    ]


def test_what_a_killed_run_left_while_it_wrote_is_removed(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 4)
    left = job.data_dir / ".outputs.x1y2.part"
    left.write_bytes(b"PAR1")
    generate(job)
    assert not left.exists()
    assert len(output_ids(job)) == 4
