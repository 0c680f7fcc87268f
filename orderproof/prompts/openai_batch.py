"""A row of OpenAI's batch format → `Prompt`, as `vllm run-batch` would read it."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from orderproof.job.sampling import VLLM_MAX_TOKENS
from orderproof.job.spec import ColumnsSpec
from orderproof.job.spelling import did_you_mean
from orderproof.prompts.json_lines import Fail, json_type
from orderproof.prompts.layout import notices_of_unread
from orderproof.prompts.openai_body import CHAT, COMPLETIONS, sampling_of, template_arguments
from orderproof.prompts.prompt import (
    Messages,
    Prompt,
    PromptError,
    check_id,
    check_messages,
    check_text,
    optional_text,
    shown,
)
from orderproof.prompts.request_defaults import RequestDefaults

FIELDS = ("custom_id", "method", "url", "body")
NOT_BESIDE_A_BODY = {
    "text": "in `body.messages` or `body.prompt`",
    "sampling": "in `body`",
    "lora": "as `body.model`",
    "id": "as `custom_id`",
}
MESSAGE_KEYS = ("role", "content", "name")


def is_request(names: Collection[str]) -> bool:
    """Whether a row with these fields has the batch format, whatever the file's name is."""
    return "custom_id" in names and "text" not in names


def notices(names: Collection[str], columns: ColumnsSpec) -> Iterator[str]:
    """What a user should know about the fields beside a row's body."""
    read = (*FIELDS, columns.label or "label", columns.reference or "reference")
    return notices_of_unread(names, read, "in `body`")


def prompt_of(
    path: Path, number: int, record: Mapping[str, Any], defaults: RequestDefaults | None, columns: ColumnsSpec
) -> Prompt:
    """Check a row and make it a prompt.

    Args:
        defaults: of the job; None: the row belongs to no job, and any model may be named.

    Raises:
        PromptError: the first thing wrong.
    """
    fail: Fail = functools.partial(PromptError, path, row=number)
    id = check_id(record, "custom_id", fail)
    fail = functools.partial(fail, id=id)
    for field, where in NOT_BESIDE_A_BODY.items():
        if field in record:
            raise fail(f"`{field}` is beside `body`", f"In a batch file write it {where}")
    endpoint, body = _endpoint(record, fail), _body(record, fail)
    sampling = sampling_of(body, endpoint, fail)
    return Prompt(
        id=id,
        text=_messages(body, fail) if endpoint == CHAT else _plain(body, fail),
        label=optional_text(record, columns.label or "label", fail),
        sampling=_complete(sampling, endpoint, defaults) or None,
        reference=optional_text(record, columns.reference or "reference", fail),
        line=number,
        lora=_adapter(body, defaults, fail),
        chat_template_args=template_arguments(body, fail) if endpoint == CHAT else None,
        endpoint=endpoint,
    )


def _endpoint(record: Mapping[str, Any], fail: Fail) -> str:
    method, url = record.get("method", "POST"), record.get("url")
    if method != "POST":
        raise fail(f"`method` must be POST, not {shown(method)}", "Correct it")
    if url not in (CHAT, COMPLETIONS):
        raise fail(f"`url` {shown(url)} is not supported", f"Use {CHAT} or {COMPLETIONS}")
    return str(url)


def _body(record: Mapping[str, Any], fail: Fail) -> Mapping[str, Any]:
    body = record.get("body")
    if not isinstance(body, dict):
        problem = f"`body` must be an object, not {json_type(body)}"
        raise fail(problem, 'Write {"model": …, "messages": […]}', flaw="text")
    return body


def _messages(body: Mapping[str, Any], fail: Fail) -> Messages:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise fail(f"`body.messages` must be a list, not {json_type(messages)}", "Give chat messages", flaw="text")
    return check_messages([_message(message, k, fail) for k, message in enumerate(messages, 1)], fail)


def _message(message: Any, number: int, fail: Fail) -> Any:
    """A message with one text as its content: how several parts are joined depends on the template."""
    if not isinstance(message, dict):
        return message
    for key in message:
        if key not in MESSAGE_KEYS and message[key] is not None:
            remedy = "Tools, reasoning and media are not supported: leave it out"
            raise fail(f"`{key}` of message {number} is not supported", remedy)
    kept = {key: value for key, value in message.items() if value is not None or key in ("role", "content")}
    if isinstance(content := message.get("content"), list):
        kinds = [part.get("type") if isinstance(part, dict) else json_type(part) for part in content]
        if kinds != ["text"]:
            remedy = "Only text is supported, in one part: join the texts, and leave images, audio and video out"
            raise fail(f"`content` of message {number} has parts of {', '.join(map(str, kinds)) or 'nothing'}", remedy)
        kept["content"] = content[0].get("text")
    return kept


def _plain(body: Mapping[str, Any], fail: Fail) -> str:
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        remedy = "Give one text a row; token ids and lists of prompts are not supported"
        raise fail("`body.prompt` is a list", remedy, flaw="text")
    return check_text(prompt, "`body.prompt`", fail)


def _adapter(body: Mapping[str, Any], defaults: RequestDefaults | None, fail: Fail) -> str | None:
    """The adapter that `model` names; None: the model itself."""
    name = body.get("model")
    if name is None or defaults is None or name in defaults.models:
        return None
    if not isinstance(name, str):
        raise fail(f"`body.model` must be text, not {json_type(name)}", "Name the job's model, or leave it out")
    if name in defaults.adapters:
        return name
    remedy = "Correct it, or name it in engine.args.served_model_name or engine.lora_modules of the job"
    hint = did_you_mean(name, (*defaults.adapters, *defaults.models))
    raise fail(f"`body.model` {shown(name)} is not served here: {hint}", remedy)


def _complete(sampling: dict[str, Any], endpoint: str, defaults: RequestDefaults | None) -> dict[str, Any]:
    """Sampling with the server's defaults for what the body does not set; the engine adds the job's own sampling.

    A chat without `max_tokens` may fill the model's length, a completion gets vLLM's 16.
    """
    if defaults is None:
        return sampling
    complete = {**defaults.sampling, **sampling}
    if endpoint == CHAT and "max_tokens" not in {**complete, **defaults.job.sampling}:
        complete["max_tokens"] = None
    elif endpoint == COMPLETIONS and "max_tokens" not in sampling:
        complete.pop("max_tokens", None)  # a completion's 16 overrides the model's own
    if defaults.max_tokens is not None:
        usual = None if endpoint == CHAT else VLLM_MAX_TOKENS
        asked = complete.get("max_tokens", defaults.job.sampling.get("max_tokens", usual))
        complete["max_tokens"] = defaults.max_tokens if asked is None else min(asked, defaults.max_tokens)
    return complete
