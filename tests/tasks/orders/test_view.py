"""What an order may see of prompts, wherever they come from."""

from __future__ import annotations

import numpy as np

from orderproof.tasks.orders import view_of
from orderproof.tasks.prompts.tokenization import TokenizedPrompts


def test_tokenized_prompts_are_seen_with_their_lines_labels_and_token_counts() -> None:
    tokenized = TokenizedPrompts(
        ids=["a", "b"],
        lines=np.array([1, 3]),
        labels=["x", None],
        samplings=[None, None],
        references=[None, None],
        rendered=["one", "two words"],
        tokens=np.arange(5, dtype=np.int32),
        offsets=np.array([0, 2, 5]),
    )
    view = view_of(tokenized)
    assert list(view.texts()) == ["one", "two words"]
    assert view.lengths()[0].tolist() == [2, 3]
    assert view.lengths()[1] == "tokens"
    assert list(view.labels) == ["x", None]
    assert view.where(1) == "prompts, line 3 (id 'b')"


def test_in_a_list_the_place_serves_for_an_id() -> None:
    view = view_of(["one", {"id": 7, "text": "two", "label": 3}])
    assert list(view.ids) == ["0", "7"]
    assert list(view.labels) == [None, "3"]
    assert view.lengths()[0].tolist() == [3, 3]
    assert view.where(0) == "prompts[0] (id '0')"
