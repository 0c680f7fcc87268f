"""Batch files are read as vLLM's `run-batch` would read them, or a row is refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orderproof.prompts.openai_body import CHAT, COMPLETIONS
from orderproof.prompts.prompt import Prompt, PromptError
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.source import PromptSource
from orderproof.prompts.tokenization import tokenize
from tests.support.openai_rows import CHATS, read_rows, request, request_defaults, write_rows
from tests.support.tiny_tokenizer import TEMPLATE, job_of, save_model


def refusal(folder: Path, *rows: Any) -> PromptError:
    with pytest.raises(PromptError) as caught:
        read_rows(folder, *rows)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_row_of_a_batch_file_is_recognised_by_its_fields(tmp_path: Path) -> None:
    beside = {"label": "x", "reference": 4}
    chat, text = read_rows(tmp_path, request(beside=beside, temperature=0), request("b", COMPLETIONS, max_tokens=3))
    assert chat == Prompt(
        "a", tuple(CHATS), "x", {"temperature": 0, "max_tokens": None}, "4", line=1, endpoint=CHAT
    )  # fmt: skip
    assert text == Prompt("b", "once", None, {"max_tokens": 3}, line=2, endpoint=COMPLETIONS)


def test_any_row_is_at_hand_as_streaming_gives_it(tmp_path: Path) -> None:
    path = write_rows(tmp_path, *(request(str(k), max_tokens=k + 1) for k in range(4)))
    whole = list(read_prompts(path, defaults=request_defaults(tmp_path)))
    with PromptSource(path, request_defaults(tmp_path)) as source:
        assert source.read([3, 1]) == [whole[3], whole[1]]
        assert source.is_batch_file


def test_a_row_with_a_text_is_a_plain_row_whatever_else_it_has(tmp_path: Path) -> None:
    (prompt,) = read_rows(tmp_path, {"id": "a", "text": "one", "custom_id": "b", "body": {}})
    assert (prompt.id, prompt.endpoint) == ("a", None)


def test_the_newer_name_of_max_tokens_goes_before_the_older(tmp_path: Path) -> None:
    (prompt,) = read_rows(tmp_path, request(max_tokens=3, max_completion_tokens=5))
    assert prompt.sampling == {"max_tokens": 5}


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}},
         {"structured_outputs": {"json": {"type": "object"}}}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"structured_outputs": {"choice": ["a", "b"]}}),
        ({"structured_outputs": {"disable_any_whitespace": True}, "response_format": {"type": "json_object"}},
         {"structured_outputs": {"disable_any_whitespace": True, "json_object": True}}),
        ({"logit_bias": {"7": 1, "8": -300}}, {"logit_bias": {"7": 1, "8": -100.0}}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": 2}),
        ({"logprobs": False}, {}),
        ({"vllm_xargs": {"a": 1}}, {"extra_args": {"a": 1}}),
        ({"stop": ["\n"], "stop_token_ids": [2], "seed": 1, "n": 2, "min_tokens": 1, "ignore_eos": True,
          "bad_words": ["no"], "skip_special_tokens": False},
         {"stop": ["\n"], "stop_token_ids": [2], "seed": 1, "n": 2, "min_tokens": 1, "ignore_eos": True,
          "bad_words": ["no"], "skip_special_tokens": False}),
        ({"user": "me", "metadata": {"a": "b"}, "stream": False, "tools": None, "tool_choice": "none", "priority": 0,
          "temperature": None, "add_special_tokens": False, "include_reasoning": True}, {}),
    ],
)  # fmt: skip
def test_a_body_is_passed_on_under_the_engine_s_names(tmp_path: Path, body: Any, asked: Any) -> None:
    (prompt,) = read_rows(tmp_path, request(**body))
    assert prompt.sampling == {**asked, "max_tokens": None}


def test_one_text_part_is_that_text(tmp_path: Path) -> None:
    (prompt,) = read_rows(tmp_path, request(messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]))
    assert prompt.text == ({"role": "user", "content": "Hi"},)


def test_arguments_of_the_template_go_before_the_job_s(tmp_path: Path) -> None:
    save_model(tmp_path, TEMPLATE)
    path = write_rows(
        tmp_path,
        request("a"),
        request("b", chat_template_kwargs={"mood": "wild"}),
        request("c", add_generation_prompt=False),
        request("d", COMPLETIONS),
    )
    job = job_of(path, tmp_path, chat_template_args={"mood": "calm"})
    found = tokenize(job, read_prompts(path, defaults=RequestDefaults(job)))
    assert [found.texts(k).partition("Hello")[2] for k in range(3)] == ["[assistant]calm", "[assistant]wild", ""]
    assert found.texts(3) == "once"
    assert [found.token_ids(k).count(0) for k in range(4)] == [1, 1, 1, 1]


def test_an_effort_of_reasoning_switches_thinking_as_vllm_does(tmp_path: Path) -> None:
    high, none, own = read_rows(
        tmp_path,
        request(reasoning_effort="high"),
        request("b", reasoning_effort="none"),
        request("c", reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}),
    )
    assert high.chat_template_args == {"enable_thinking": True, "reasoning_effort": "high"}
    assert none.chat_template_args == {"enable_thinking": False, "reasoning_effort": "none"}
    assert own.chat_template_args == {"enable_thinking": True, "reasoning_effort": "none"}


def test_a_plain_row_may_name_an_adapter_too(tmp_path: Path) -> None:
    (prompt,) = read_rows(tmp_path, {"id": "a", "text": "one", "lora": "tone"})
    assert prompt.lora == "tone"
    error = refusal(tmp_path, {"id": "a", "text": "one", "lora": "tune"})
    assert "`lora` 'tune' is not in engine.lora_modules of the job: did you mean 'tone'" in error.problem


@pytest.mark.parametrize(
    ("row", "problem", "remedy"),
    [
        (request(max_token=3), "is not a key of /v1/chat/completions: did you mean 'max_tokens'", ""),
        (request(url=COMPLETIONS, messages=CHATS), "`body.messages` is not a key of /v1/completions", ""),
        (request(stream=True), "`body.stream` is not supported", "not streamed"),
        (request(tools=[{"type": "function"}]), "`body.tools` is not supported", "Tools"),
        (request(tool_choice="auto"), "`body.tool_choice` is not supported", "Tools"),
        (request(audio={}), "`body.audio` is not supported", "Only text"),
        (request(echo=True), "`body.echo` is not supported", ""),
        (request(best_of=3), "`body.best_of` is not supported", "`n`"),
        (request(use_beam_search=True), "`body.use_beam_search`", "samples"),
        (request(priority=-1), "`body.priority`", "override the order"),
        (request(guided_json={}), "`body.guided_json` is not supported", "`structured_outputs: {json: …}`"),
        (request(guided_regex="a"), "`body.guided_regex`", "{regex: …}"),
        (request(chat_template="x"), "`body.chat_template`", "`tokenizer`"),
        (request(prompt_logprobs=1), "`body.prompt_logprobs`", "not delivered"),
        (request(add_special_tokens=True), "`body.add_special_tokens`", "special tokens"),
        (request(return_token_ids=True), "`body.return_token_ids`", "outputs.parquet"),
        (request(temperature="hot"), "`body.temperature` must be a number, not text", ""),
        (request(seed=2**63), "`body.seed` must be a whole number of 64 bits, not a number", ""),
        (request(n=0), "`body.n` must be a whole number from 1", ""),
        (request(max_tokens=2**70), "`body.max_tokens` must be a whole number from 1 to 2147483647", ""),
        (request(max_completion_tokens=0), "`body.max_tokens` must be a whole number from 1", ""),
        (request(max_tokens=True), "`body.max_tokens` must be a whole number, not true or false", ""),
        (request(stop=[1]), "`body.stop` must be text or a list of texts", ""),
        (request(logit_bias={"x": 1}), "`body.logit_bias` holds", "number"),
        (request(top_logprobs=2), "asked without `logprobs`", "`logprobs` to true"),
        (request(logprobs=True, top_logprobs=-1), "all tokens", "0 to 20"),
        (request(response_format={"type": "xml"}), "`body.response_format.type` 'xml'", "json_schema"),
        (request(response_format={"type": "json_schema", "json_schema": {}}), "has no `schema`", ""),
        (request(chat_template_kwargs={"tokenize": True}), "`body.chat_template_kwargs.tokenize`", ""),
        (request(model="mane"), "`body.model` 'mane' is not served here: did you mean 'main'", "served_model_name"),
        (request(model=3), "`body.model` must be text", ""),
        (request(messages="Hello"), "`body.messages` must be a list, not text", ""),
        (request(messages=[]), "messages hold no text", ""),
        (request(messages=["x"]), "message 1 is text", ""),
        (request(messages=[{"role": "assistant", "content": None}]), "`content` of message 1 must be text", ""),
        (request(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "parts of image_url", "images"),
        (request(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}]), "text, text", "join"),
        (request(messages=[{"role": "assistant", "content": "x", "tool_calls": [1]}]), "`tool_calls` of message 1", ""),
        (request(url=COMPLETIONS, prompt=[1, 2]), "`body.prompt` is a list", "one text a row"),
        (request(url=COMPLETIONS, prompt=" "), "`body.prompt` is empty", ""),
        (request(url=COMPLETIONS, prompt=None), "`body.prompt` must be text, not null", ""),
        (request(url="/v1/embeddings"), "`url` '/v1/embeddings' is not supported", CHAT),
        ({"custom_id": "a", "url": CHAT}, "`body` must be an object, not null", ""),
        ({"custom_id": "", "url": CHAT, "body": {}}, "`custom_id` is empty", ""),
        (request() | {"method": "GET"}, "`method` must be POST, not 'GET'", ""),
        (request() | {"sampling": {}}, "`sampling` is beside `body`", "in `body`"),
        ({"id": "b", "text": "plain"}, "is a plain row, and line 1 is a batch row", "two files"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_named_with_line_id_and_key(
    tmp_path: Path, row: Any, problem: str, remedy: str
) -> None:
    error = refusal(tmp_path, request("first"), row)
    assert problem in error.problem
    assert remedy in error.remedy
    assert error.row == 2


def test_no_key_of_a_body_is_left_out_silently(tmp_path: Path) -> None:
    error = refusal(tmp_path, request(anything="x"))
    assert "(id 'a')" in str(error)
    assert "`body.anything`" in str(error)
