"""Rows that cannot be sent get a reason in the outputs, as far as they are tolerated; the engine is the stand-in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orderproof.generate.delivery import DeliveryError
from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job
from orderproof.orders.registry import make_order
from orderproof.orders.view import view_of
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.stream import Stream
from orderproof.runs.promotion import current_order, write_promotion
from orderproof.runs.promotion_record import Evidence
from orderproof.validation.validate import ValidationFailed, validate_prompts, validate_settings
from tests.support.batches import (
    TRIAL,
    count,
    edit_job,
    generate,
    generated_places,
    make_project,
    outputs,
    reproduce,
)

pytestmark = pytest.mark.usefixtures("no_tracker")
PROMPTS, TOLERATED = 60, 0.1
BAD: dict[int, Any] = {
    3: "no JSON",
    4: {"id": "p4", "text": None},
    20: {"text": "no id"},
    41: {"id": "p41", "text": "x" * 200, "label": "domain 1"},
    42: {"id": "p42", "text": [{"role": "user", "content": "x", "name": 3}], "label": "domain 1"},
}
UNREADABLE = {3, 4, 20, 42}
IDS = [{3: "line 4", 20: "line 21"}.get(k, f"p{k}") for k in range(PROMPTS)]


def write_rows(path: Path, bad: dict[int, Any]) -> None:
    rows = [bad.get(k, {"id": f"p{k}", "text": f"prompt {k}", "label": f"domain {k * 3 % 7}"}) for k in range(PROMPTS)]
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = make_project(tmp_path / "p", PROMPTS, generate={"tolerated_failures": TOLERATED})
    write_rows(made.prompts_path, BAD)
    return made


def promote(job: Job, window: int | None = None) -> Sequence[str]:
    """Promote the label order of the prompts that a trial would measure. Returns their ids in that order."""
    prompts = validate_prompts(job, job.root / "found")
    spec = job.order.model_copy(update={"method": "label", "window": window})
    order = make_order(spec, view_of(prompts), md5_of(job.prompts_path))
    write_promotion(job, order, prompts.ids, Evidence(trial=TRIAL))
    return order.apply(prompts.ids)


def assert_complete(job: Job) -> None:
    rows = outputs(job)
    assert [row["id"] for row in rows] == IDS
    assert {k for k, row in enumerate(rows) if row["error"]} == set(BAD)
    assert "is not JSON" in rows[3]["error"]
    assert "`text` is null" in rows[4]["error"]
    assert "200 tokens does not fit" in rows[41]["error"]


def test_bad_rows_are_in_the_outputs_with_their_reasons(job: Job) -> None:
    assert count(generate(job), "generated", "failed") == (PROMPTS - len(BAD), len(BAD))
    assert_complete(job)


def test_an_order_that_was_measured_without_bad_rows_is_the_order_of_the_others(job: Job) -> None:
    sent = promote(job)
    assert len(sent) == PROMPTS - len(BAD)
    assert current_order(job, md5_of(job.prompts_path), validate_prompts(job, job.root / "found").ids).method == "label"
    run = generate(job)
    assert run.basis.order is not None
    assert run.basis.order.method == "label"
    assert_complete(job)
    assert sorted(generated_places(job).tolist()) == sorted(set(range(PROMPTS)) - set(BAD))
    finished = [IDS[place] for place in generated_places(job)]
    assert {tuple(sorted(finished[k : k + 16])) for k in (0, 16, 32)} == {
        tuple(sorted(sent[k : k + 16])) for k in (0, 16, 32)
    }


@pytest.mark.parametrize("window", [None, 16])
def test_new_prompts_with_bad_rows_among_them_are_put_into_the_promoted_order(job: Job, window: int | None) -> None:
    write_rows(job.prompts_path, {})
    promote(job, window)
    write_rows(job.prompts_path, BAD)
    generate(job)
    assert_complete(job)


def test_a_reproduction_finds_bad_rows_as_they_were(job: Job) -> None:
    generate(job)
    assert reproduce(job).answer == "reproduced"


def test_a_stream_goes_on_after_a_bad_row(job: Job, tmp_path: Path) -> None:
    promote(job, 16)
    source = tmp_path / "stream.jsonl"
    write_rows(source, BAD)
    generate(job, stream=Stream(str(source)))
    assert_complete(job)


def test_without_tolerance_the_first_bad_row_ends_a_job_before_anything_is_spent(job: Job, tmp_path: Path) -> None:
    job = job.model_copy(update={"generate": job.generate.model_copy(update={"tolerated_failures": 0.0})})
    with pytest.raises(PromptError, match=r"line 4: is not JSON.*3 more rows.*set `tolerated_failures` to 0\.0667"):
        generate(job)
    with pytest.raises(ValidationFailed, match=r"set `tolerated_failures` to 0\.0834"):
        validate_prompts(job, tmp_path / "found")
    with pytest.raises(PromptError, match="line 4: is not JSON"):
        generate(job, stream=Stream(str(job.prompts_path)))
    assert not generated_places(job).size


def test_rows_that_the_engine_refuses_count_with_those_that_cannot_be_read(job: Job) -> None:
    unreadable = job.generate.model_copy(update={"tolerated_failures": len(UNREADABLE) / PROMPTS})
    with pytest.raises(DeliveryError, match=r"5 of 60 prompts have no output .*set `tolerated_failures` to 0\.0834"):
        generate(job.model_copy(update={"generate": unreadable}))


def test_rows_whose_sampling_vllm_refuses_are_left_out_too(job: Job, tmp_path: Path) -> None:
    write_rows(job.prompts_path, {7: {"id": "p7", "text": "x", "sampling": {"max_tokens": 1000}}})
    job = edit_job(
        job,
        engine={**job.engine.model_dump(exclude_defaults=True), "args": {"max_num_seqs": 16, "max_model_len": 2000}},
    )
    prompts = validate_settings(job, validate_prompts(job, tmp_path / "found"))
    assert prompts.ids == [f"p{k}" for k in range(PROMPTS) if k != 7]
    assert prompts.rows_left_out == 1
    assert "line 8 (id 'p7'): sampling: max_tokens 1000 is too many" in prompts.notices[-1]
    none = job.model_copy(update={"generate": job.generate.model_copy(update={"tolerated_failures": 0.0})})
    with pytest.raises(ValidationFailed, match=r"(?s)line 8 .*set `tolerated_failures` to 0\.0167"):
        validate_settings(none, validate_prompts(none, tmp_path / "found"))
