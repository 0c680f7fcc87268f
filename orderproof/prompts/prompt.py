"""One row of a prompt file → `Prompt`, or a `PromptError` that names file, row and id, and what to do."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orderproof.job.errors import OrderproofError
from orderproof.job.sampling import MAX_COUNT, REFUSED_SAMPLING, is_count
from orderproof.job.spelling import did_you_mean
from orderproof.prompts.chats import chat_in, with_roles
from orderproof.prompts.file_kinds import name_of, row_word
from orderproof.prompts.json_lines import Fail, json_type
from orderproof.prompts.layout import NATIVE, Layout, resembled
from orderproof.prompts.request_defaults import RequestDefaults

SHOWN_CHARACTERS = 60  # of an id or value in a message

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # control characters, line ends, surrogates
_BROKEN_TEXT = re.compile("[\x00\ud800-\udfff]")  # what no tokenizer should get: NUL and halves of surrogate pairs

Messages = tuple[Mapping[str, str], ...]
Notice = Callable[[str], None]  # gets what should be known about a row that is used
Flaw = Literal["file", "end", "row", "id", "text"]


class PromptError(OrderproofError):
    """A prompt file or one of its rows that cannot be used.

    Attributes:
        problem, remedy: what is wrong, and what to do about it.
        file, row, id: where; `row` is a line of JSON lines or a row of Parquet, from 1, and None for the whole file.
        flaw: `file`: nothing can be read; `end`: the file is cut off; `row`: this row is no prompt; `id`, `text`: the
            row lacks this.
    """

    def __init__(
        self,
        file: Path,
        problem: str,
        remedy: str,
        *,
        row: int | None = None,
        id: str | None = None,
        flaw: Flaw = "row",
    ):
        self.file, self.row, self.id = file, row, id
        self.problem, self.remedy, self.flaw = problem.rstrip("."), remedy, flaw
        end = "" if self.problem.endswith("?") else "."
        where = name_of(file) + (f", {row_word(file)} {row}" if row else "") + (f" (id {shown(id)})" if id else "")
        super().__init__(f"{where}: {self.problem}{end} {remedy}")

    @property
    def is_of_one_row(self) -> bool:
        """Whether all other rows can be used nevertheless."""
        return self.flaw not in ("file", "end")


def duplicate_id(path: Path, prompt: Prompt, first: int | None) -> PromptError:
    """The error for an id's second use; `first`: the row of its first use, None where that is not known."""
    problem = f"duplicate id, first on {row_word(path)} {first}" if first else "duplicate id, first on an earlier line"
    return PromptError(path, problem, "Give every prompt its own id", row=prompt.line, id=prompt.id, flaw="id")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a batch. `text` is plain, or chat messages of at least `role` and `content`."""

    id: str
    text: str | Messages
    label: str | None = None
    sampling: Mapping[str, Any] | None = None  # vLLM's SamplingParams, over the job's
    reference: str | None = None
    line: int = 0  # of JSON lines, or row of Parquet, from 1
    lora: str | None = None  # name of an adapter in the job's engine.lora_modules; None: the model itself
    chat_template_args: Mapping[str, Any] | None = None  # over the job's
    endpoint: str | None = None  # of a row of a batch file, such as /v1/chat/completions; None: a plain row
    flaw: str | None = None  # why this row cannot be sent; it has a place and an id all the same


def flawed_prompt(error: PromptError) -> Prompt:
    """A row that is no prompt, in its place. Its id is its own, or its line where it has none."""
    row = error.row or 0
    id = error.id or f"{row_word(error.file)} {row}"
    return Prompt(id=id, text="", label="", line=row, flaw=error.problem)  # ordering by label must not miss one


def prompt_of(
    path: Path,
    number: int,
    record: Mapping[str, Any],
    defaults: RequestDefaults | None = None,
    layout: Layout = NATIVE,
    notice: Notice = lambda _: None,
) -> Prompt:
    """Check a row and make it a prompt.

    Args:
        defaults: of the job; None: the row belongs to no job, and any adapter may be named.
        layout: the columns of the fields.

    Raises:
        PromptError: the first thing wrong.
    """
    fail: Fail = functools.partial(PromptError, path, row=number)
    id = _number_as_id(number, record, fail) if layout.id is None else check_id(record, layout.id, fail)
    fail = functools.partial(fail, id=id)
    job = defaults.job if defaults else None
    needs_label = not job or job.order.method == "label" or job.columns.label is not None
    needs_reference = not job or job.measure.scorer is not None or job.columns.reference is not None
    reference = _text_if_needed(record, layout.reference, needs_reference, fail, notice)
    text, answer = _text(record, layout.text, reference, fail, notice)
    return Prompt(
        id=id,
        text=text,
        label=_text_if_needed(record, layout.label, needs_label, fail, notice),
        sampling=_sampling(record, fail),
        reference=reference or answer,
        line=number,
        lora=_lora(record, defaults, fail) if "lora" in record else None,
    )


def check_id(record: Mapping[str, Any], field: str, fail: Fail) -> str:
    """A row's id: text or a whole number, in decimal text."""
    value = record.get(field)
    if value is None:
        raise fail(f"has no `{field}`{list_fields(record)}", "Give every prompt its own id", flaw="id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise fail(f"`{field}` must be text or a whole number, not {json_type(value)}", "Give every prompt its own id")
    if not value or value.isspace():
        raise fail(f"`{field}` is empty", "Give every prompt its own id", flaw="id")
    if _UNPRINTABLE.search(value):
        raise fail(f"`{field}` {shown(value)} holds a control character", "Use printable ids on one line")
    return value


def _number_as_id(number: int, record: Mapping[str, Any], fail: Fail) -> str:
    if record.get("id") is not None:
        raise fail("has an `id`, and the first row has none", "Give every row its own id, or none", flaw="id")
    return str(number)


def _text(
    record: Mapping[str, Any], name: str, reference: str | None, fail: Fail, notice: Notice
) -> tuple[str | Messages, str | None]:
    """The prompt, and the answer to it that the file has as the last message of the chat."""
    value = record.get(name)
    if value is None:
        raise fail(_missing(record, name), "Give the prompt its text, or leave the row out", flaw="text")
    holds_answers = name != "text"
    if isinstance(value, str) and (chat := chat_in(value)):
        notice(f"`{name}` is a chat as JSON text: it is sent as chat messages")
        value, holds_answers = chat, True
    if isinstance(value, list):
        messages = check_messages(with_roles(value, fail), fail)
        if not holds_answers or messages[-1]["role"] != "assistant":
            return messages, None
        taken = "left out" if reference is not None else "left out and taken as `reference`"
        notice(f"the last message of `{name}` is the assistant's: it is {taken}")
        return check_messages(list(messages[:-1]), fail), messages[-1]["content"] or None
    if not isinstance(value, str):
        raise fail(f"`{name}` must be text or a list of messages, not {json_type(value)}", "Write it as a JSON string")
    return check_text(value, f"`{name}`", fail), None


def _missing(record: Mapping[str, Any], name: str) -> str:
    if name in record:
        return f"`{name}` is null"
    near = next((other for other in record if resembled(other, (name,))), None)
    return f"has no `{name}`" + (f": did you mean {near!r}?" if near else list_fields(record))


def check_text(value: Any, name: str, fail: Fail) -> str:
    """Check a prompt's text, which has this name in the file."""
    if not isinstance(value, str):
        raise fail(f"{name} must be text, not {json_type(value)}", "Write it as a JSON string", flaw="text")
    if not value or value.isspace():
        raise fail(f"{name} is empty", "Give the prompt its text, or leave the row out", flaw="text")
    return _check_characters(value, name, fail)


def check_messages(value: list[Any], fail: Fail) -> Messages:
    """Check chat messages, whose members must all be text; one that is null is absent."""
    remedy = 'Write a message as {"role": "user", "content": "…"}'
    messages: list[Mapping[str, str]] = []
    for number, given in enumerate(value, 1):
        if not isinstance(given, dict):
            raise fail(f"message {number} is {json_type(given)} instead of an object", remedy)
        message = {key: member for key, member in given.items() if member is not None}
        for key in {"role": 0, "content": 0, **message}:
            if not isinstance(message.get(key), str):
                raise fail(f"`{key}` of message {number} must be text, not {json_type(message.get(key))}", remedy)
            _check_characters(message[key], f"`{key}` of message {number}", fail)
        messages.append(message)
    if not any(message["content"].strip() for message in messages):
        raise fail("its messages hold no text", remedy, flaw="text")
    return tuple(messages)


def _check_characters(text: str, name: str, fail: Fail) -> str:
    if found := _BROKEN_TEXT.search(text):
        what = "a NUL character" if found[0] == "\0" else "half of a surrogate pair"
        raise fail(f"{name} holds {what} at character {found.start() + 1}", "Remove it")
    return text


def optional_text(record: Mapping[str, Any], field: str, fail: Fail) -> str | None:
    """A field that may be absent, null or empty; numbers in their decimal text."""
    value = record.get(field)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise fail(f"`{field}` must be text or a number, not {json_type(value)}", "Correct it or leave it out")
    return _check_characters(str(value), f"`{field}`", fail)


def _text_if_needed(record: Mapping[str, Any], field: str, needed: bool, fail: Fail, notice: Notice) -> str | None:
    """`optional_text`; of a field that the job does not use, another value is no mistake."""
    try:
        return optional_text(record, field, fail)
    except PromptError:
        if needed:
            raise
        notice(f"`{field}` is neither text nor a number: this job does not use it")
        return None


def _lora(record: Mapping[str, Any], defaults: RequestDefaults | None, fail: Fail) -> str | None:
    name = optional_text(record, "lora", fail)
    if name is not None and defaults is not None and name not in defaults.adapters:
        problem = (
            f"`lora` {shown(name)} is not in engine.lora_modules of the job: {did_you_mean(name, defaults.adapters)}"
        )
        raise fail(problem, "Correct it, or add it there")
    return name


def _sampling(record: Mapping[str, Any], fail: Fail) -> Mapping[str, Any] | None:
    value = record.get("sampling")
    if value is None:
        return None
    if not isinstance(value, dict):
        remedy = 'Write it as {"max_tokens": 64}, with the names of vLLM\'s SamplingParams'
        raise fail(f"`sampling` must be an object, not {json_type(value)}", remedy)
    for key, may_be_null in (("max_tokens", True), ("n", False)):
        asked = value.get(key, 1)
        if asked is None and may_be_null:
            continue
        if not is_count(asked):
            problem = f"`sampling.{key}` must be a whole number from 1 to {MAX_COUNT}, not {shown(asked)}"
            raise fail(problem, "Correct it")
    for key in value.keys() & REFUSED_SAMPLING.keys():
        raise fail(f"`sampling.{key}` is not supported", REFUSED_SAMPLING[key])
    return value or None


def list_fields(names: Iterable[str]) -> str:
    """The fields that a row or file does have, for the message about a missing one."""
    there = list(names)
    return f"; there are {', '.join(map(shown, there[:8]))}{' …' if len(there) > 8 else ''}" if there else ""


def shown(value: Any) -> str:
    """A value for a message: quoted, on one line, shortened."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…")
