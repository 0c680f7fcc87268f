"""What a job asks of each prompt, and whether it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orderproof.job.model import ModelFacts
from orderproof.job.sampling import MAX_COUNT, asked_samples, asked_tokens, is_count, is_cut_short, max_model_len
from orderproof.job.spec import EngineSpec, Job, JobError


def job(sampling: dict[str, Any], **args: Any) -> Job:
    return Job(
        name="j", root=Path(), prompts="p.jsonl", model="m", sampling=sampling, engine=EngineSpec(args=args)
    )  # fmt: skip


def model(limit: int | None) -> ModelFacts:
    return ModelFacts("m", "f", "A", limit, None, False)


@pytest.mark.parametrize(("value", "expected"), [(1, True), (MAX_COUNT, True), (0, False), (MAX_COUNT + 1, False),
                                                 (True, False), (2.0, False), ("3", False), (None, False)])  # fmt: skip
def test_counts_are_whole_numbers_from_one_to_the_largest_of_32_bits(value: Any, expected: bool) -> None:
    assert is_count(value) is expected


def test_a_prompt_s_own_sampling_goes_before_the_job_s() -> None:
    own: list[Any] = [None, {"max_tokens": 3, "n": 2}, {"max_tokens": None}, {}]
    assert list(asked_tokens(job({"max_tokens": 9}), own)) == [9, 3, None, 9]
    assert list(asked_samples(job({"n": 4}), own)) == [4, 2, 4, 4]


def test_where_neither_says_anything_vllm_s_defaults_hold() -> None:
    assert list(asked_tokens(job({}), [None])) == [16]
    assert list(asked_samples(job({}), [None])) == [1]


@pytest.mark.parametrize("asked", [0, "many", True])
def test_a_job_s_number_of_tokens_that_is_none_is_refused_by_its_key(asked: Any) -> None:
    with pytest.raises(JobError, match=r"jobs\.j\.sampling\.max_tokens"):
        asked_tokens(job({"max_tokens": asked}), [])


def test_the_job_s_length_goes_before_the_model_s() -> None:
    assert max_model_len(job({}, max_model_len=100), model(2048)) == 100
    assert max_model_len(job({}), model(2048)) == 2048
    with pytest.raises(JobError, match="max_model_len"):
        max_model_len(job({}), model(None))


@pytest.mark.parametrize(
    ("reason", "tokens", "asked", "expected"),
    [
        ("length", 12, 24, True),
        ("length", 24, 24, False),
        ("stop", 12, 24, False),
        ("length", 12, None, False),
        ("length", None, 24, False),
        (None, None, None, False),
    ],
)
def test_an_output_is_cut_short_where_length_ended_it_before_the_tokens_that_were_asked(
    reason: str | None, tokens: int | None, asked: int | None, expected: bool
) -> None:
    assert is_cut_short(reason, tokens, asked) is expected
