"""How much of an order's neighbours is of one kind."""

from __future__ import annotations

import numpy as np
import pytest

from orderproof.orders.purity import purity
from orderproof.orders.registry import expert_friendly_order


def of(labels: str, run: int) -> float | None:
    return purity(np.arange(len(labels)), list(labels), run)


def test_it_is_the_share_of_each_runs_commonest_label() -> None:
    assert of("aaabbbab", 4) == pytest.approx((3 + 3) / 8)
    assert of("aabb" * 3, 2) == 1
    assert of("abab" * 3, 4) == 0.5
    assert of("aaab", 100) == 0.75


def test_a_last_run_that_is_short_counts_as_it_is() -> None:
    assert of("aaaab", 4) == 1
    assert of("aabbb", 4) == pytest.approx((2 + 1) / 5)


def test_the_order_of_sending_counts_and_not_the_files() -> None:
    labels = list("abab")
    assert purity(np.array([0, 2, 1, 3]), labels, 2) == 1
    assert purity(np.arange(4), labels, 2) == 0.5


@pytest.mark.parametrize("labels", [[], ["a", "a"], [None, None], ["a", None, "b"]])
def test_without_two_kinds_or_with_gaps_there_is_nothing_to_tell(labels: list[str | None]) -> None:
    assert purity(np.arange(len(labels)), labels) is None


def test_an_order_knows_its_own() -> None:
    prompts = [{"text": "x", "label": "ab"[i % 2]} for i in range(64)]
    assert expert_friendly_order(prompts, "file").purity == 0.5
    assert expert_friendly_order(prompts, "label").purity == 1
    assert expert_friendly_order(["x", "y"], "file").purity is None
