"""A result → a line of OpenAI's batch output, in the form that vLLM's `run-batch` writes.

In: a prompt of a batch file and what became of it. Out: one line of JSON. The same results give the same lines but for
`created`. Knows nothing of files, checkpoints' folders or engines.
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
    """Makes the lines of one file of outputs."""

    model: str  # name of the model itself
    sampling: Mapping[str, Any]  # the job's, under each prompt's own
    dataset_md5: str
    created: int  # seconds since 1970

    def line(self, prompt: Prompt, result: Result) -> bytes:
        """One request's line, its newline included."""
        id = hashlib.blake2b(f"{self.dataset_md5}\0{result.id}".encode(), digest_size=16).hexdigest()
        code = 200 if result.completions else result.code or 400
        response = {
            "status_code": code,
            "request_id": f"orderproof-batch-{id}",
            "body": self._body(prompt, result, id) if result.completions else None,
        }
        whole = {"id": f"orderproof-{id}", "custom_id": result.id, "response": response, "error": _error(result, code)}
        return json.dumps(whole, ensure_ascii=False).encode() + b"\n"

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
    """Why there is no output, or how it is not what was asked; None: all is well."""
    if result.error is None:
        return None
    kind = ERROR_TYPES.get(code, ERROR_TYPES[400])
    return {"error": {"message": result.error, "type": kind, "param": None, "code": code if code != 200 else 400}}


def _chat_choice(index: int, one: Completion, most: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": one.text, "refusal": None}
    return {"index": index, "message": message, **_ending(one, most, _chat_logprobs)}


def _text_choice(index: int, one: Completion, most: int) -> dict[str, Any]:
    return {"index": index, "text": one.text, **_ending(one, most, _text_logprobs)}


def _ending(one: Completion, most: int, logprobs: Callable[[Completion, int], dict[str, Any]]) -> dict[str, Any]:
    told = None if one.logprobs is None else logprobs(one, most)
    return {"logprobs": told, "finish_reason": one.finish_reason, "stop_reason": one.stop_reason}


def _chat_logprobs(one: Completion, most: int) -> dict[str, Any]:
    """As vLLM tells of a chat's tokens: each with the `most` first of the listed ones."""
    return {
        "content": [
            {**_told(likely[0]), "top_logprobs": [_told(token) for token in likely[:most]]}
            for likely in one.logprobs or ()
        ]
    }


def _told(token: TokenLogprob) -> dict[str, Any]:
    _, logprob, text = token
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def _text_logprobs(one: Completion, most: int) -> dict[str, Any]:
    """As vLLM tells of a completion's tokens: each with the `most` likeliest and itself."""
    texts = [likely[0][2] for likely in one.logprobs or ()]
    starts = [0]
    for text in texts[:-1]:
        starts.append(starts[-1] + len(text))
    return {
        "text_offset": starts[: len(texts)],
        "token_logprobs": [likely[0][1] for likely in one.logprobs or ()],
        "tokens": texts,
        "top_logprobs": [{text: logprob for _, logprob, text in likely[: most + 1]} for likely in one.logprobs or ()],
    }
