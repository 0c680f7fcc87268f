"""The same bodies through vLLM's own protocol classes: the same sampling, and no field of theirs forgotten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orderproof.engines.worker import _Sampler
from orderproof.prompts import openai_body
from orderproof.prompts.openai_body import CHAT, COMPLETIONS
from orderproof.prompts.prompt_file import read_prompts
from tests.support.openai_rows import request, request_defaults, write_rows

pytestmark = pytest.mark.engine  # imports vLLM, which takes ten seconds

ROOM = 40  # tokens that a prompt of ours leaves
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
BODIES: list[dict[str, Any]] = [
    {},
    {"max_tokens": 3},
    {"max_tokens": None, "temperature": None, "n": None, "stop": None},
    {"temperature": 0},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "n": 3, "seed": 4},
    {"presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.2},
    {"stop": "\n", "include_stop_str_in_output": True},
    {"stop": ["a", "b"], "stop_token_ids": [2, 2, 3], "ignore_eos": True, "min_tokens": 2, "max_tokens": 9},
    {"logit_bias": {"5": 200, "6": -1.5}, "bad_words": ["x", "x"], "allowed_token_ids": [1, 2, 3]},
    {"response_format": {"type": "json_object"}},
    {"response_format": SCHEMA},
    {"response_format": {"type": "text"}, "structured_outputs": {"regex": "[ab]+"}},
    {"structured_outputs": {"choice": ["a", "b"]}},
    {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    {"repetition_detection": {"max_pattern_size": 3, "min_count": 4}, "thinking_token_budget": 7},
    {"vllm_xargs": {"a": 1}},
    {"user": "me", "stream": False, "length_penalty": 1.0},
]
OF_CHAT = [{"max_completion_tokens": 5, "max_tokens": 3}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 3}]
OF_COMPLETIONS = [{"logprobs": 0}, {"logprobs": 2}]
CASES = [(CHAT, body) for body in BODIES + OF_CHAT] + [(COMPLETIONS, body) for body in BODIES + OF_COMPLETIONS]


def protocol(endpoint: str) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    return ChatCompletionRequest if endpoint == CHAT else CompletionRequest


def as_run_batch_samples(endpoint: str, body: dict[str, Any], defaults: dict[str, Any]) -> Any:
    """What vLLM's serving classes make of a body: see create_chat_completion and create_completion."""
    from vllm.entrypoints.serve.utils.api_utils import get_max_tokens

    if endpoint == COMPLETIONS and body.get("n", 1) is None:
        body = {key: value for key, value in body.items() if key != "n"}  # vLLM refuses this null; here it says nothing
    asked = protocol(endpoint).model_validate(body)
    most = getattr(asked, "max_completion_tokens", None) or asked.max_tokens
    return asked.to_sampling_params(get_max_tokens(ROOM, most, 0, defaults), defaults)


@pytest.mark.parametrize("defaults", [{}, {"temperature": 0.6, "top_k": 20, "max_new_tokens": 9}])
@pytest.mark.parametrize(("endpoint", "body"), CASES)
def test_a_body_gives_the_sampling_that_run_batch_gives(
    tmp_path: Path, endpoint: str, body: dict[str, Any], defaults: dict[str, Any]
) -> None:
    whole = request(url=endpoint, **body)
    by = request_defaults(tmp_path, {"temperature": 1.0, **defaults} if defaults else None)
    (prompt,) = read_prompts(write_rows(tmp_path, whole), defaults=by)
    ours: Any = _Sampler({}).params(dict(prompt.sampling or {}))
    if ours.max_tokens is None:
        ours.max_tokens = ROOM  # as vLLM's InputProcessor does
    of_server = {("max_tokens" if key == "max_new_tokens" else key): value for key, value in defaults.items()}
    theirs = as_run_batch_samples(endpoint, whole["body"], of_server)
    theirs.skip_clone = False  # of their own use of the value
    assert ours == theirs


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_every_field_of_the_protocol_is_passed_on_or_refused(endpoint: str) -> None:
    known = {*openai_body.KNOWN[endpoint], *openai_body.REFUSED, *openai_body.LABELS}
    assert set(protocol(endpoint).model_fields) - known == {
        "model", "messages" if endpoint == CHAT else "prompt", "add_special_tokens",
    }  # fmt: skip


def test_the_value_that_equals_an_absent_key_is_the_protocol_s_default() -> None:
    for endpoint in (CHAT, COMPLETIONS):
        for key, field in protocol(endpoint).model_fields.items():
            if key in openai_body.REFUSED and not field.is_required() and field.default_factory is None:
                usual, _ = openai_body.REFUSED[key]
                assert field.default is None or field.default in usual, key
        assert protocol(endpoint).model_fields["add_special_tokens"].default == openai_body.SPECIAL_TOKENS[endpoint]


def test_vllm_s_own_classes_take_our_batch_files_and_our_outputs(tmp_path: Path) -> None:
    from vllm.entrypoints.launchers.run_batch import BatchRequestInput, BatchRequestOutput
    from vllm.entrypoints.openai.completion.protocol import CompletionResponse

    from orderproof.job.paths import OUTPUTS_BATCH_FILE
    from tests.support.batches import generate, make_batch_job

    job = make_batch_job(tmp_path / "p", 30, tolerated_failures=0.1)
    rows = [json.loads(line) for line in job.prompts_path.read_bytes().splitlines()]
    for row in rows:
        if row["url"] == CHAT:
            BatchRequestInput.model_validate(row)
    generate(job)
    lines = (job.data_dir / OUTPUTS_BATCH_FILE).read_bytes().splitlines()
    for row, line in zip(rows, map(json.loads, lines), strict=True):
        if row["url"] == COMPLETIONS and line["response"]["body"]:
            assert CompletionResponse.model_validate(line["response"]["body"]).choices
            line["response"]["body"] = None  # run-batch itself knows chats alone
        output = BatchRequestOutput.model_validate(line)
        assert output.custom_id == row["custom_id"]
        if row["url"] == CHAT:
            assert output.response.body.object == "chat.completion"
