"""A row becomes a prompt, or is refused by its line, its id and its field."""

from __future__ import annotations

from pathlib import Path

import pytest

from orderproof.prompts.prompt import Prompt
from orderproof.prompts.prompt_file import read_prompts
from tests.support.prompt_files import CHAT, GOOD, line, refusal, write


def test_every_field_is_read_with_the_number_of_its_line(tmp_path: Path) -> None:
    row = line(id="b", text="two", label="code", sampling={"max_tokens": 5}, reference="4", source="kept out")
    assert list(read_prompts(write(tmp_path, GOOD + b"\n" + row))) == [
        Prompt("a", "one", line=1),
        Prompt("b", "two", "code", {"max_tokens": 5}, "4", line=3),
    ]


def test_whole_numbers_become_ids_labels_and_references_in_decimal_text(tmp_path: Path) -> None:
    (prompt,) = read_prompts(write(tmp_path, line(id=7, text="one", label=3, reference=2.5)))
    assert (prompt.id, prompt.label, prompt.reference) == ("7", "3", "2.5")


def test_null_and_empty_optional_fields_are_absent(tmp_path: Path) -> None:
    (prompt,) = read_prompts(write(tmp_path, line(id="a", text="one", label="", sampling=None, reference=None)))
    assert (prompt.label, prompt.sampling, prompt.reference) == (None, None, None)


def test_null_members_of_a_message_are_absent(tmp_path: Path) -> None:
    messages = [{**CHAT[0], "name": None, "tool_calls": None}, CHAT[1]]
    (prompt,) = read_prompts(write(tmp_path, line(id="a", text=messages)))
    assert list(prompt.text) == CHAT


@pytest.mark.parametrize(
    ("row", "problem", "remedy"),
    [
        (line(text="x"), "has no `id`; there are 'text'", "its own id"),
        (line(id=None, text="x"), "has no `id`", "its own id"),
        (line(id="", text="x"), "`id` is empty", "its own id"),
        (line(id=" ", text="x"), "`id` is empty", "its own id"),
        (line(id="a\tb", text="x"), "control character", "printable"),
        (line(id="a\x7f", text="x"), "control character", "printable"),
        (line(id="a\u2028b", text="x"), "control character", "printable"),
        (b'{"id": "\\ud800", "text": "x"}', "control character", "printable"),
        (line(id=1.5, text="x"), "not a number", "its own id"),
        (line(id=True, text="x"), "not true or false", "its own id"),
        (line(id=["a"], text="x"), "not a list", "its own id"),
        (line(id="b", text=None), "`text` is null", "leave the row out"),
        (line(id="b", prompt="x"), "has no `text`; there are 'id', 'prompt'", "leave the row out"),
        (line(id="b", text=""), "`text` is empty", "leave the row out"),
        (line(id="b", text=" \n"), "`text` is empty", "leave the row out"),
        (line(id="b", text=5), "`text` must be text or a list of messages, not a number", "JSON string"),
        (line(id="b", text="a\0b"), "`text` holds a NUL character at character 2", "Remove"),
        (b'{"id": "b", "text": "a\\udc00"}', "half of a surrogate pair at character 2", "Remove"),
        (line(id="b", text=[]), "messages hold no text", "role"),
        (line(id="b", text=[{"role": "user", "content": " "}]), "messages hold no text", "role"),
        (line(id="b", text=["x"]), "message 1 is text", "role"),
        (line(id="b", text=[CHAT[0], {"role": "user"}]), "`content` of message 2 must be text, not null", "role"),
        (line(id="b", text=[{"content": "x"}]), "`role` of message 1 must be text", "role"),
        (line(id="b", text=[{"role": "user", "content": [{"type": "text"}]}]), "not a list", "role"),
        (line(id="b", text=[{"role": "user", "content": "a\0"}]), "`content` of message 1 holds a NUL", "Remove"),
        (line(id="b", Text="x"), "has no `text`: did you mean 'Text'", "leave the row out"),
        (line(id="b", text="x", label=["c"]), "`label` must be text or a number, not a list", "Correct"),
        (line(id="b", text="x", reference={}), "`reference` must be text or a number, not an object", "Correct"),
        (line(id="b", text="x", sampling="hot"), "`sampling` must be an object, not text", "SamplingParams"),
        (line(id="b", text="x", sampling={"max_tokens": 0}), "whole number from 1 to 2147483647, not '0'", "Correct"),
        (line(id="b", text="x", sampling={"max_tokens": True}), "whole number from 1", "Correct"),
        (line(id="b", text="x", sampling={"n": 0}), "`sampling.n` must be a whole number from 1 to", "Correct"),
        (line(id="b", text="x", sampling={"max_tokens": 2**70}), "whole number from 1 to 2147483647", "Correct"),
        (line(id="b", text="x", sampling={"n": None}), "`sampling.n` must be a whole number", "Correct"),
    ],
)
def test_a_row_that_is_no_prompt_is_named_with_its_line(tmp_path: Path, row: bytes, problem: str, remedy: str) -> None:
    error = refusal(write(tmp_path, GOOD + row.rstrip(b"\n") + b"\n" + GOOD))
    assert problem in error.problem
    assert remedy in error.remedy
    assert ", line 2" in str(error)


def test_an_error_names_the_id_where_there_is_one_and_never_the_text(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, line(id="private-7", text="secret\0words")))
    assert "(id 'private-7')" in str(error)
    assert "secret" not in str(error)


def test_a_free_field_that_resembles_one_that_is_there_is_no_mistake(tmp_path: Path) -> None:
    row = line(id="a", text="one", ids=[1], texts=["one"], label="x", labels=["x"], context="free", source="free")
    assert len(list(read_prompts(write(tmp_path, row)))) == 1
