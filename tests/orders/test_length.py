"""The longest prompt comes first, by tokens where they are known."""

from __future__ import annotations

import numpy as np

from orderproof.job.spec import OrderSpec
from orderproof.orders.registry import expert_friendly_order, make_order
from orderproof.orders.view import PromptView


def test_the_longest_prompt_comes_first_and_equal_ones_keep_the_files_order() -> None:
    order = expert_friendly_order(["aa", "a", "aaa", "bb"], "length")
    assert order.permutation.tolist() == [2, 0, 3, 1]
    assert order.parameters == {"unit": "characters"}


def test_tokens_count_where_there_are_any() -> None:
    view = PromptView(
        ["a", "b"], [None, None], ["a long text of few tokens", "short"].__getitem__, token_counts=np.array([3, 9])
    )
    order = make_order(OrderSpec(method="length"), view, "md5")
    assert order.permutation.tolist() == [1, 0]
    assert order.parameters == {"unit": "tokens"}
