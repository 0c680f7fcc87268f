"""A sample is drawn from all over the file, and grouped by what tells prompts apart."""

from __future__ import annotations

import numpy as np
import pytest

from orderproof.capture.sample import groups_of, sample_size, stratified
from orderproof.job.spec import OrderSpec
from tests.support.fake_engine import mixed, prompts_of


@pytest.mark.parametrize(
    ("prompts", "batch", "size"), [(768, 16, 768), (10_000, 16, 4096), (100_000, 256, 8192), (5000, 256, 5000)]
)
def test_a_sample_fills_batches_and_is_never_larger_than_the_job(prompts: int, batch: int, size: int) -> None:
    assert sample_size(prompts, batch) == size


def test_every_part_of_the_file_gives_one_prompt() -> None:
    places = stratified(1003, 100, seed=1)
    assert (np.diff(places) > 0).all()
    edges = np.arange(101) * 1003 // 100
    assert ((places >= edges[:-1]) & (places < edges[1:])).all()


def test_a_seed_draws_the_same_sample_and_another_one_another() -> None:
    assert np.array_equal(stratified(1000, 50, 7), stratified(1000, 50, 7))
    assert not np.array_equal(stratified(1000, 50, 7), stratified(1000, 50, 8))


def test_a_sample_of_more_prompts_than_there_are_is_all_of_them() -> None:
    assert stratified(5, 9, 0).tolist() == [0, 1, 2, 3, 4]


def test_labels_are_the_groups_where_every_prompt_has_one() -> None:
    prompts = prompts_of(mixed(12))
    assert groups_of(prompts, OrderSpec()) == ("label", prompts.labels)


@pytest.mark.parametrize("labels", [["code"] * 11 + [None], [None] * 12, ["code"] * 12])
def test_without_labels_that_tell_prompts_apart_clusters_are(labels: list[str | None]) -> None:
    prompts = prompts_of(["code", "law", "maths"] * 4)
    prompts.labels[:] = labels
    kind, groups = groups_of(prompts, OrderSpec(clusters=3, signal="lexical"))
    assert kind == "cluster"
    assert [len(set(groups[start::3])) for start in range(3)] == [1, 1, 1]
    assert len(set(groups)) == 3
