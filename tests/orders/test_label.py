"""Labels in the order of their appearance, the file's order within; one that is missing is named."""

from __future__ import annotations

import pytest

from orderproof.job.spec import OrderSpec
from orderproof.orders.order import OrderError
from orderproof.orders.registry import expert_friendly_order, make_order
from orderproof.orders.view import PromptView


def test_labels_come_in_the_order_of_their_first_appearance_and_keep_the_files_order_within() -> None:
    prompts = [{"text": "x", "label": label} for label in ("b", "a", "b", "c", "a")]
    assert expert_friendly_order(prompts, "label").permutation.tolist() == [0, 2, 1, 4, 3]


def test_a_grouped_file_stays_as_it_is() -> None:
    prompts = [{"text": "x", "label": label} for label in "zzzaaammm"]
    assert expert_friendly_order(prompts, "label").permutation.tolist() == list(range(9))


def test_the_first_missing_label_is_named_with_line_and_id() -> None:
    view = PromptView(["a", "b", "c"], ["x", None, None], str, lines=[1, 3, 4], source="data/prompts.jsonl")
    with pytest.raises(OrderError, match=r"data/prompts\.jsonl, line 3 \(id 'b'\).*and 1 more prompts"):
        make_order(OrderSpec(method="label"), view, "md5")


def test_an_empty_label_is_a_label() -> None:
    prompts = [{"text": "x", "label": label} for label in ("", "a", "")]
    assert expert_friendly_order(prompts, "label").permutation.tolist() == [0, 2, 1]
