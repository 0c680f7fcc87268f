"""Chats in the forms that people have → messages of `role` and `content`."""

from __future__ import annotations

import json
from typing import Any

from orderproof.prompts.json_lines import Fail

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
# `from` of a turn → the role that chat templates know.
ROLE_OF = {**{role: role for role in ROLES}, "human": "user", "gpt": "assistant", "chatgpt": "assistant",
           "bot": "assistant", "bard": "assistant", "bing": "assistant", "model": "assistant"}  # fmt: skip


def chat_in(text: str) -> list[Any] | None:
    """The messages of a text that is a chat as JSON, or None: it is an ordinary text."""
    if text.lstrip()[:1] not in ("[", "{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        value = value.get("messages", value.get("conversations"))
    return value if isinstance(value, list) and value and all(map(_is_message, value)) else None


def with_roles(messages: list[Any], fail: Fail) -> list[Any]:
    """Turns of `from` and `value` as messages of `role` and `content`; all others are left as they are."""
    return [_with_role(number, message, fail) for number, message in enumerate(messages, 1)]


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return ("content" in value and value.get("role") in ROLES) or ("value" in value and value.get("from") in ROLE_OF)


def _with_role(number: int, message: Any, fail: Fail) -> Any:
    if not isinstance(message, dict) or "role" in message or not {"from", "value"} <= message.keys():
        return message
    role = ROLE_OF.get(message["from"]) if isinstance(message["from"], str) else None
    if role is None:
        raise fail(f"`from` of message {number} is not known", f"Use one of {', '.join(sorted(ROLE_OF))}")
    others = {key: value for key, value in message.items() if key not in ("from", "value")}
    return {"role": role, "content": message["value"], **others}
