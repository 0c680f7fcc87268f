"""What an order may see of prompts, wherever they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.orders.order import OrderError
from orderproof.orders.view import view_of, view_of_source
from orderproof.prompts.source import PromptSource
from orderproof.prompts.tokenization import TokenizedPrompts, Tokenizer


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


def test_the_words_of_a_chat_are_those_of_its_messages_and_their_parts() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}, {"text": "here"}]
    chat = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "b"},
    ]
    assert list(view_of([chat, {"custom_id": "a", "body": {"messages": chat}}]).texts()) == ["look\n\nhere\n\nb"] * 2


@pytest.mark.parametrize("content", [5, True, {"text": "a"}])
def test_a_chat_message_whose_content_is_no_text_is_named(content: Any) -> None:
    view = view_of(["fine", {"messages": [{"role": "user", "content": content}]}])
    with pytest.raises(OrderError, match=r"prompts\[1\]: the `content` of a chat message is neither text nor a list"):
        list(view.texts())


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2], [3]]])
def test_token_ids_are_refused_as_what_they_are(prompt: list[Any]) -> None:
    with pytest.raises(OrderError, match=r"prompts\[0\]: .*token ids are not read"):
        list(view_of([{"prompt": prompt}]).texts())


def test_of_prompts_on_disk_labels_and_token_counts_are_read_where_they_are_wanted(tmp_path: Path) -> None:
    class Words(Tokenizer):
        def __init__(self) -> None:
            pass

        def __call__(self, prompts: Any) -> Any:
            return [str(prompt.text) for prompt in prompts], [str(prompt.text).split() for prompt in prompts]

        def render(self, prompt: Any) -> str:
            return str(prompt.text)

    path = tmp_path / "prompts.jsonl"
    rows = [{"id": "a", "text": "one", "label": "x"}, {"id": "b", "text": "two words", "sampling": {"n": 3}}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = Words()
    with PromptSource(path) as source:
        view = view_of_source(source, tokenizer, labels=True, lengths=True)
        assert (list(view.ids), view.labels, view.text(0)) == (["a", "b"], ["x", None], "one")
        assert view.lengths()[0].tolist() == [1, 2]
        assert list(view.samples([0, 1])) == [1, 3]
        bare = view_of_source(source, tokenizer, labels=False, lengths=False)
        assert (bare.labels, bare.token_counts) == ([None, None], None)
