"""Chats are recognised in the forms that people have, and nothing else is taken for a chat."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orderproof.prompts.chats import chat_in, with_roles
from tests.support.prompt_files import CHAT


class Refused(Exception):
    pass


def fail(problem: str, remedy: str) -> Refused:
    return Refused(f"{problem}. {remedy}")


@pytest.mark.parametrize("text", [json.dumps(CHAT), "\n " + json.dumps(CHAT), json.dumps({"messages": CHAT})])
def test_a_chat_as_json_text_is_found(text: str) -> None:
    assert chat_in(text) == CHAT


def test_turns_as_json_text_are_found() -> None:
    turns = [{"from": "human", "value": "Hi"}]
    assert chat_in(json.dumps(turns)) == turns


@pytest.mark.parametrize(
    "text",
    ["Hello", "[1, 2]", "[]", "[", "{}", '{"role": "user", "content": "x"}', '["role", "content"]', "[" * 100_000,
     '[{"role": "admin", "content": "x"}]', '[{"name": "x"}]', json.dumps(CHAT) + " Translate this.", "[INST] Hi"],
)  # fmt: skip
def test_an_ordinary_text_is_no_chat(text: str) -> None:
    assert chat_in(text) is None


def test_turns_become_messages() -> None:
    turns = [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]
    assert [(m["role"], m["content"]) for m in with_roles(turns, fail)] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Ho"),
    ]


def test_messages_are_left_as_they_are() -> None:
    odd: list[Any] = [*CHAT, "x", {"from": "human"}]
    assert with_roles(odd, fail) == odd


@pytest.mark.parametrize("speaker", ["nobody", 5, None, ["human"]])
def test_a_turn_of_nobody_known_is_refused(speaker: Any) -> None:
    with pytest.raises(Refused, match="`from` of message 1"):
        with_roles([{"from": speaker, "value": "x"}], fail)
