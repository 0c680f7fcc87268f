"""Rows as their owners have them become prompts, and whatever was decided about them is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.spec import ColumnsSpec, EngineSpec, Job, MeasureSpec, OrderSpec
from orderproof.prompts.prompt import Prompt, PromptError
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.source import PromptSource
from tests.support.openai_rows import request
from tests.support.prompt_files import CHAT, line, parquet, write

ANSWER = {"role": "assistant", "content": "Hi!"}
TURNS = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi!"}]


def job(**changes: Any) -> RequestDefaults:
    engine = EngineSpec(args={"max_num_seqs": 4})
    return RequestDefaults(Job(name="it", root=Path(), prompts="p", model="m", engine=engine, **changes))


def read(path: Path, **changes: Any) -> tuple[list[Prompt], str]:
    notices: list[str] = []
    prompts = list(read_prompts(path, defaults=job(order=OrderSpec(), **changes), on_notice=notices.append))
    return prompts, "\n".join(notices)


def test_columns_have_the_names_that_the_job_gives(tmp_path: Path) -> None:
    columns = ColumnsSpec(id="prompt_id", text="messages", label="source", reference="answer")
    rows = {"prompt_id": ["a"], "messages": [CHAT], "source": ["web"], "answer": ["4"], "text": ["other"]}
    for path in (parquet(tmp_path, **rows), write(tmp_path, line(**{name: rows[name][0] for name in rows}))):
        (prompt,), notices = read(path, columns=columns)
        assert prompt == Prompt("a", tuple(CHAT), "web", reference="4", line=1)
        assert notices == ""


def test_a_column_that_the_job_names_and_the_file_lacks_is_named(tmp_path: Path) -> None:
    columns = ColumnsSpec(id="key", text="question")
    with pytest.raises(PromptError, match="line 1: has no `key`; there are 'text'"):
        read(write(tmp_path, line(text="x")), columns=columns)
    with pytest.raises(PromptError, match="has no column `key`"):
        read(parquet(tmp_path, question=["x"]), columns=columns)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("prompt", "Hello", "Hello"),
        ("prompt", CHAT, tuple(CHAT)),
        ("messages", CHAT, tuple(CHAT)),
        ("messages", json.dumps(CHAT), tuple(CHAT)),
        ("conversations", TURNS[:1], ({"role": "user", "content": "Hello"},)),
    ],
)
def test_known_layouts_are_recognised_and_rows_without_ids_are_numbered(
    tmp_path: Path, kind: str, name: str, value: Any, text: Any
) -> None:
    is_lines = kind == "jsonl"
    path = write(tmp_path, line(**{name: value}) * 2) if is_lines else parquet(tmp_path, **{name: [value] * 2})
    prompts, notices = read(path)
    assert [(prompt.id, prompt.text) for prompt in prompts] == [("1", text), ("2", text)]
    assert "there is no `id`" in notices
    assert f"the prompts are in `{name}` ({'line' if is_lines else 'row'} 1 and 1 more)" in notices


def test_an_id_among_rows_that_are_numbered_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="line 2: has an `id`, and the first row has none"):
        read(write(tmp_path, line(text="x") + line(id="7", text="y")))


@pytest.mark.parametrize("chat", [{"messages": [*CHAT, ANSWER]}, {"conversations": TURNS}, {"prompt": [*CHAT, ANSWER]}])
@pytest.mark.parametrize(("own", "reference"), [({}, "Hi!"), ({"reference": "Ho"}, "Ho")])
def test_the_assistants_last_message_is_no_part_of_the_prompt(
    tmp_path: Path, chat: dict[str, Any], own: dict[str, str], reference: str
) -> None:
    (prompt,), notices = read(write(tmp_path, line(id="a", **chat, **own)))
    assert prompt.text[-1] == {"role": "user", "content": "Hello"}
    assert prompt.reference == reference
    assert ("taken as `reference`" in notices) == (not own)
    assert "the last message" in notices


def test_in_our_own_format_the_last_message_stays(tmp_path: Path) -> None:
    (prompt,), notices = read(write(tmp_path, line(id="a", text=[*CHAT, ANSWER])))
    assert (list(prompt.text), notices) == ([*CHAT, ANSWER], "")


def test_a_chat_as_json_text_is_sent_as_a_chat_and_that_is_said(tmp_path: Path) -> None:
    content = line(id="a", text=json.dumps(CHAT)) + line(id="b", text="[1] is a citation")
    (chat, plain), notices = read(write(tmp_path, content))
    assert (chat.text, plain.text) == (tuple(CHAT), "[1] is a citation")
    assert "a chat as JSON text: it is sent as chat messages (line 1)" in notices


def test_columns_beside_the_prompt_never_refuse_a_file(tmp_path: Path) -> None:
    content = line(id="a", text="x", labels=[1], lable={}, max_tokens=5, Reference=None)
    (prompt,), notices = read(write(tmp_path, content))
    assert prompt.text == "x"
    for name in ("labels", "lable", "max_tokens", "Reference"):
        assert f"`{name}` is not read" in notices
    assert (
        "`max_tokens` is not read: a parameter of vLLM's sampling belongs in `body`"
        in read(write(tmp_path, line(**request("a"), max_tokens=5)))[1]
    )


def test_a_field_is_checked_where_the_job_uses_it(tmp_path: Path) -> None:
    path = write(tmp_path, line(id="a", text="x", label=["c"], reference={}))
    (prompt,), notices = read(path)
    assert (prompt.label, prompt.reference) == (None, None)
    assert "`label` is neither text nor a number" in notices
    with pytest.raises(PromptError, match="`label` must be text"):
        list(read_prompts(path, defaults=job(order=OrderSpec(method="label"))))
    with pytest.raises(PromptError, match="`reference` must be text"):
        read(path, measure=MeasureSpec(scorer="exact"))


def test_requests_of_the_batch_format_are_read_from_parquet(tmp_path: Path) -> None:
    row = request("a")
    path = parquet(tmp_path, **{name: [value] for name, value in row.items()}, label=["x"])
    expected = next(read_prompts(write(tmp_path, line(**row, label="x")), defaults=job()))
    assert next(read_prompts(path, defaults=job())) == expected
    with PromptSource(path, job()) as source:
        assert source.read([0]) == [expected]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_any_rows_of_a_recognised_layout_are_reached(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    chats = [[{"role": "user", "content": f"{i}"}, ANSWER] for i in range(3)]
    content = b"".join(line(messages=chat) for chat in chats)
    path = write(tmp_path, content) if kind == "jsonl" else parquet(tmp_path, messages=chats)
    whole = list(read_prompts(path, defaults=job()))
    with PromptSource(path, job()) as source:
        assert source.read([2, 0]) == [whole[2], whole[0]]
        assert list(source.ids) == ["1", "2", "3"]
    assert caplog.text.count("taken as `reference`") == 1
