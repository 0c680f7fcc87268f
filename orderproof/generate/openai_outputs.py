"""A result as a line of OpenAI's batch output, in the form that vLLM's `run-batch` writes.

The same results give the same lines, except for `created`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orderproof.engines.protocol import Completion, TokenLogprob
from orderproof.generate.result import Result
from orderproof.prompts.openai_body import CHAT
from orderproof.prompts.prompt import Prompt

ERROR_TYPES = {400: "BadRequestError", 500: "InternalServerError"}


@dataclass(frozen=True)
class BatchLines:
    """The lines of one file of outputs."""

    model: str  # name of the model itself
    sampling: Mapping[str, Any]  # the job's; a prompt's own goes before it
    dataset_md5: str
    created: int  # seconds since 1970

    def line(self, prompt: Prompt, result: Result) -> bytes:
        """The line of one request, newline included."""
        id = hashlib.blake2b(f"{self.dataset_md5}\0{result.id}".encode(), digest_size=16).hexdigest()
        code = 200 if result.completions else result.code or 400
        response = {
            "status_code": code,
            "request_id": f"orderproof-batch-{id}",
            "body": self._body(prompt, result, id) if result.completions else None,
        }
        line = {"id": f"orderproof-{id}", "custom_id": result.id, "response": response, "error": _error(result, code)}
        return json.dumps(line, ensure_ascii=False).encode() + b"\n"

    def _body(self, prompt: Prompt, result: Result, id: str) -> dict[str, Any]:
        is_chat = prompt.endpoint == CHAT
        most = {**self.sampling, **(prompt.sampling or {})}.get("logprobs") or 0
        choice = _chat_choice if is_chat else _text_choice
        return {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{id}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": self.created,
            "model": prompt.lora or self.model,
            "choices": [choice(k, completion, most) for k, completion in enumerate(result.completions)],
            "usage": {
                "prompt_tokens": result.prompt_tokens,
                "total_tokens": result.prompt_tokens + result.output_tokens,
                "completion_tokens": result.output_tokens,
            },
        }


def _error(result: Result, code: int) -> dict[str, Any] | None:
    """Why there is no output, or how it differs from the request; None: neither."""
    if result.error is None:
        return None
    kind = ERROR_TYPES.get(code, ERROR_TYPES[400])
    return {"error": {"message": result.error, "type": kind, "param": None, "code": code if code != 200 else 400}}


def _chat_choice(index: int, completion: Completion, most: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": completion.text, "refusal": None}
    return {"index": index, "message": message, **_ending(completion, most, _chat_logprobs)}


def _text_choice(index: int, completion: Completion, most: int) -> dict[str, Any]:
    return {"index": index, "text": completion.text, **_ending(completion, most, _text_logprobs)}


def _ending(completion: Completion, most: int, logprobs: Callable[[Completion, int], dict[str, Any]]) -> dict[str, Any]:
    listed = None if completion.logprobs is None else logprobs(completion, most)
    return {"logprobs": listed, "finish_reason": completion.finish_reason, "stop_reason": completion.stop_reason}


def _chat_logprobs(completion: Completion, most: int) -> dict[str, Any]:
    """In vLLM's form for chats: each token with the `most` first of the listed ones."""
    return {
        "content": [
            {**_token(likely[0]), "top_logprobs": [_token(token) for token in likely[:most]]}
            for likely in completion.logprobs or ()
        ]
    }


def _token(token: TokenLogprob) -> dict[str, Any]:
    _, logprob, text = token
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def _text_logprobs(completion: Completion, most: int) -> dict[str, Any]:
    """In vLLM's form for completions: each token with the `most` likeliest and itself."""
    tokens = completion.logprobs or ()
    texts = [likely[0][2] for likely in tokens]
    starts = [0]
    for text in texts[:-1]:
        starts.append(starts[-1] + len(text))
    return {
        "text_offset": starts[: len(texts)],
        "token_logprobs": [likely[0][1] for likely in tokens],
        "tokens": texts,
        "top_logprobs": [{text: logprob for _, logprob, text in likely[: most + 1]} for likely in tokens],
    }
