"""What a job's own files say of batches, prefill and grouping, without an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orderproof.forecast.job_profile import JobFacts, profile_job
from orderproof.job.spec import OrderSpec
from orderproof.orders.registry import make_order
from tests.support.fake_engine import BATCH, MOE, grouped, mixed, prompts_of
from tests.support.trial_maker import make_job

SIZE = 96


def facts(root: Path, labels: list[str], model: object = MOE) -> JobFacts:
    prompts = prompts_of(labels, tokens=48)
    file = make_order(OrderSpec(method="file"), prompts, "md5")
    return profile_job(make_job(root), model, prompts, file)  # type: ignore[arg-type]


def test_a_jobs_own_files_say_how_full_its_batches_are_and_what_is_prefill(tmp_path: Path) -> None:
    profile = facts(tmp_path, mixed(SIZE))
    assert (profile.prompts, profile.batch, profile.batches) == (SIZE, BATCH, SIZE / BATCH)
    assert (profile.prompt_tokens, profile.output_tokens, profile.prefill_share) == (48, 16, 0.75)
    assert (profile.labels, profile.runs_in) == (3, "file")


def test_a_batch_touches_what_independent_tokens_leave_untouched_alike(tmp_path: Path) -> None:
    profile = facts(tmp_path, mixed(SIZE))
    assert profile.touched == pytest.approx(1 - (1 - 4 / 64) ** BATCH)
    assert profile.touched_sorted is not None
    assert 0 < profile.touched_sorted < profile.touched
    dense = facts(tmp_path, mixed(SIZE), replace(MOE, moe=None))
    assert (dense.moe, dense.touched, dense.touched_sorted) == (None, None, None)


@pytest.mark.parametrize(
    ("labels", "like"), [(mixed(SIZE), True), (grouped(SIZE), False), (sorted(set(mixed(SIZE))) * 32, False)]
)
def test_a_file_that_groups_or_deals_its_kinds_out_is_no_shuffle(tmp_path: Path, labels: list[str], like: bool) -> None:
    profile = facts(tmp_path, labels)
    assert (profile.shuffle_like, profile.neighbours_p > 0.05) == (like, like)
