"""The text of a prompt in any of the forms that people have: a string, chat messages, or a batch API's request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orderproof.orders.order import OrderError
from orderproof.prompts.prompt import Prompt

TEXT_FIELDS = ("text", "prompt", "messages", "input")  # of our files, completions, chats, embeddings
CHAT_FORM = "Give messages with `role` and `content`, or a text; token ids are not read"


def text_of(prompt: Any, where: str) -> str:
    """Read a prompt's text: a string, the contents of chat messages, or those in the body of a batch API's request.

    Args:
        where: names the prompt in an error.

    Raises:
        OrderError: there is no text.
    """
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Prompt):
        return text_of(prompt.text, where)
    if isinstance(prompt, Mapping):
        request = prompt["body"] if isinstance(prompt.get("body"), Mapping) else prompt
        for field in TEXT_FIELDS:
            if request.get(field) is not None:
                return text_of(request[field], where)
    if isinstance(prompt, Sequence) and prompt:
        return "\n".join(_message_text(message, where) for message in prompt)
    fields = ", ".join(TEXT_FIELDS)
    raise OrderError(f"{where}: it has no text. Give a string, chat messages, or one of the fields {fields}")


def _message_text(message: Any, where: str) -> str:
    """The text of a chat message or of one part of it; images and the like have none."""
    if isinstance(message, str):
        return message
    if not isinstance(message, Mapping):
        raise OrderError(f"{where}: a chat message is not an object. {CHAT_FORM}")
    content = message.get("content", message.get("text"))
    if content is None:  # a tool call, an image
        return ""
    if not isinstance(content, str | list | tuple):
        raise OrderError(f"{where}: the `content` of a chat message is neither text nor a list of parts. {CHAT_FORM}")
    return content if isinstance(content, str) else "\n".join(_message_text(part, where) for part in content)
