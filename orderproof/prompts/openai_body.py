"""The body of an OpenAI request → vLLM's SamplingParams and the arguments of a chat template, key by key.

No key is dropped silently: it is passed on, or refused, or has the value that leaving it out would have. Names,
meanings and defaults are those of vLLM's protocol classes (ChatCompletionRequest, CompletionRequest), so that outputs
are sampled as by `vllm run-batch`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from orderproof.job.sampling import MAX_COUNT
from orderproof.job.spelling import nearest
from orderproof.prompts.json_lines import Fail, json_type
from orderproof.prompts.prompt import shown

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LOGIT_BIAS_LIMIT = 100.0

Body = Mapping[str, Any]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _long(value: Any) -> bool:
    return _whole(value) and -(2**63) <= value < 2**63


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _tokens(value: Any) -> bool:
    return isinstance(value, list) and all(map(_whole, value))


def _object(value: Any) -> bool:
    return isinstance(value, dict)


_WHOLE = (_whole, "a whole number")
_NUMBER = (_number, "a number")
_FLAG = (_flag, "true or false")
_STRINGS = (_strings, "a list of texts")
_TOKENS = (_tokens, "a list of token numbers")
_OBJECT = (_object, "an object")
Kind = tuple[Callable[[Any], bool], str]

# Passed on under the same name.
PASSED: dict[str, Kind] = {
    **dict.fromkeys(("n", "top_k", "min_tokens", "thinking_token_budget"), _WHOLE),
    "seed": (_long, "a whole number of 64 bits"),
    **dict.fromkeys(("temperature", "top_p", "min_p"), _NUMBER),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "repetition_penalty"), _NUMBER),
    **dict.fromkeys(("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens"), _FLAG),
    "include_stop_str_in_output": _FLAG,
    "stop": (lambda value: isinstance(value, str) or _strings(value), "text or a list of texts"),
    "bad_words": _STRINGS,
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids"), _TOKENS),
    **dict.fromkeys(("structured_outputs", "repetition_detection"), _OBJECT),
}
# Passed on after a change of name or form, each by its function below.
CHANGED: dict[str, Kind] = {
    "max_tokens": _WHOLE,
    "logit_bias": _OBJECT,
    "response_format": _OBJECT,
    "vllm_xargs": _OBJECT,
}
CHANGED_OF_CHAT: dict[str, Kind] = {"max_completion_tokens": _WHOLE, "logprobs": _FLAG, "top_logprobs": _WHOLE}
CHANGED_OF_COMPLETIONS: dict[str, Kind] = {"logprobs": _WHOLE}
# Arguments of the chat template.
TEMPLATE: dict[str, Kind] = {
    "chat_template_kwargs": _OBJECT,
    **dict.fromkeys(("add_generation_prompt", "continue_final_message"), _FLAG),
    "documents": (lambda value: isinstance(value, list) and all(map(_object, value)), "a list of objects"),
    "reasoning_effort": (lambda value: isinstance(value, str), "text"),
}
KNOWN = {
    CHAT: {**PASSED, **CHANGED, **CHANGED_OF_CHAT, **TEMPLATE},
    COMPLETIONS: {**PASSED, **CHANGED, **CHANGED_OF_COMPLETIONS},
}
# Labels of the file's author that no engine reads.
LABELS = frozenset({"user", "metadata", "safety_identifier"})

_NO_STREAM = "A batch is not streamed: leave it out"
_NO_TOOLS = "Tools are not supported: leave them out, or describe them in a message"
_NO_MEDIA = "Only text is supported: leave images, audio and video out"
_NO_CUT = "Prompts are never cut: shorten the text"
_NO_BEAM = "There is no beam search: ask for samples with `n`"
_IN_PARQUET = "Leave it out: outputs.parquet holds the token ids of every output"
_STRUCTURED = "vLLM has replaced it: write `structured_outputs: "
# Not supported, with the values that are the same as leaving the key out, and what to do.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "stream": ((False,), _NO_STREAM),
    "stream_options": ((), _NO_STREAM),
    "stream_interval": ((), _NO_STREAM),
    **dict.fromkeys(("tools", "functions", "function_call"), ((), _NO_TOOLS)),
    "tool_choice": (("none",), _NO_TOOLS),
    "parallel_tool_calls": ((True, False), _NO_TOOLS),
    "modalities": ((["text"],), _NO_MEDIA),
    **dict.fromkeys(("audio", "media_io_kwargs", "mm_processor_kwargs"), ((), _NO_MEDIA)),
    "prompt_embeds": ((), "Only text is supported: give `prompt`"),
    "echo": ((False,), "Outputs never repeat the prompt: put it before them yourself"),
    "suffix": ((), "vLLM does not support it either: leave it out"),
    "best_of": ((1,), "Ask for samples with `n`, and choose among them yourself"),
    "use_beam_search": ((False,), _NO_BEAM),
    "length_penalty": ((1.0,), _NO_BEAM),
    **dict.fromkeys(("truncate_prompt_tokens", "truncation_side"), ((), _NO_CUT)),
    "chat_template": ((), "Set `tokenizer` of the job to a folder whose template it is"),
    "prompt_logprobs": ((), "Probabilities of the prompt are not delivered: leave it out"),
    "logprob_token_ids": ((), "Ask for the most likely tokens with `logprobs`"),
    "watermarking": ((), "Watermarks are not supported: leave it out"),
    "include_reasoning": ((True,), "Texts are delivered as generated, reasoning included: leave it out"),
    "priority": ((0,), "Priorities would override the order: leave it out"),
    **dict.fromkeys(
        ("request_id", "session_id", "cache_salt"), ((), "Requests are known by `custom_id`: leave it out")
    ),
    **dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids"), ((False,), _IN_PARQUET)),
    "return_prompt_text": ((False,), "Render the prompt yourself: leave it out"),
    **dict.fromkeys(("kv_transfer_params", "ec_transfer_params"), ((), "Prompts are computed here: leave it out")),
    "service_tier": (("auto", "default"), "There is one tier: leave it out"),
    "store": ((False,), "Nothing is stored elsewhere: leave it out"),
    "routed_experts_prompt_start": ((0,), "Routing is not delivered with outputs: leave it out"),
    "return_token_offsets": ((False,), "Offsets are not delivered: leave it out"),
    "mm_payload": (("tensors",), _NO_MEDIA),
    "return_mm_kwargs": ((True,), _NO_MEDIA),
    "guided_json": ((), f"{_STRUCTURED}{{json: …}}`"),
    "guided_regex": ((), f"{_STRUCTURED}{{regex: …}}`"),
    "guided_choice": ((), f"{_STRUCTURED}{{choice: […]}}`"),
    "guided_grammar": ((), f"{_STRUCTURED}{{grammar: …}}`"),
    "guided_whitespace_pattern": ((), f"{_STRUCTURED}{{whitespace_pattern: …}}` beside the constraint"),
    "guided_decoding_backend": ((), "Set engine.args.structured_outputs_config of the job"),
}
SPECIAL_TOKENS = {CHAT: False, COMPLETIONS: True}  # `add_special_tokens`: a template brings its own


def sampling_of(body: Body, endpoint: str, fail: Fail) -> dict[str, Any]:
    """The SamplingParams that the body sets; `max_tokens` under that name for either endpoint.

    Raises:
        PromptError: made by `fail` for a key that is unknown, unsupported or has a wrong type.
    """
    given = _checked(body, endpoint, fail)
    sampling = {key: value for key, value in given.items() if key in PASSED}
    asked = given.get("max_completion_tokens", given.get("max_tokens"))
    for key, value in (("max_tokens", asked), ("n", sampling.get("n"))):
        if value is not None and not 1 <= value <= MAX_COUNT:
            raise fail(f"`body.{key}` must be a whole number from 1 to {MAX_COUNT}, not {shown(value)}", "Correct it")
    if asked is not None:
        sampling["max_tokens"] = asked
    if "logit_bias" in given:
        sampling["logit_bias"] = _logit_bias(given["logit_bias"], fail)
    if "vllm_xargs" in given:
        sampling["extra_args"] = given["vllm_xargs"]
    if (logprobs := _logprobs(given, endpoint, fail)) is not None:
        sampling["logprobs"] = logprobs
    if constraint := _constraint(given.get("response_format"), fail):
        sampling["structured_outputs"] = {**sampling.get("structured_outputs", {}), **constraint}
    return sampling


def template_arguments(body: Body, fail: Fail) -> dict[str, Any] | None:
    """Arguments of the chat template, a body's own keys before its `chat_template_kwargs`; None: the job's alone."""
    arguments = dict(body.get("chat_template_kwargs") or {})
    for key in ("chat_template", "tokenize"):
        if key in arguments:
            raise fail(f"`body.chat_template_kwargs.{key}` is no argument of a template", "Leave it out")
    effort = body.get("reasoning_effort")
    if effort is not None:
        arguments.setdefault("enable_thinking", effort != "none")
    for key in ("add_generation_prompt", "continue_final_message", "documents", "reasoning_effort"):
        if body.get(key) is not None:
            arguments[key] = body[key]
    return arguments or None


def _checked(body: Body, endpoint: str, fail: Fail) -> dict[str, Any]:
    """The keys that set something. Null does not, as in vLLM's protocol."""
    given, known = {}, KNOWN[endpoint]
    for key, value in body.items():
        if key in ("model", "messages" if endpoint == CHAT else "prompt") or key in LABELS or value is None:
            continue
        if key in known:
            holds, kind = known[key]
            if not holds(value):
                raise fail(f"`body.{key}` must be {kind}, not {json_type(value)}", "Correct it, or leave it out")
            given[key] = value
        else:
            _refuse_but_usual(key, value, endpoint, fail)
    return given


def _refuse_but_usual(key: str, value: Any, endpoint: str, fail: Fail) -> None:
    """Raise, unless the value is the same as leaving the key out."""
    if key == "add_special_tokens":
        usual, remedy = (SPECIAL_TOKENS[endpoint],), "Leave it out: prompts get the tokenizer's special tokens"
    elif key in REFUSED:
        usual, remedy = REFUSED[key]
    else:
        near = nearest(key, KNOWN[endpoint])
        hint = f": did you mean {near!r}?" if near else ""
        raise fail(f"`body.{key}` is not a key of {endpoint}{hint}", "Rename it, or leave it out")
    if value not in usual:
        raise fail(f"`body.{key}` is not supported", remedy)


def _logit_bias(biases: Mapping[str, Any], fail: Fail) -> dict[str, float]:
    """Biases by token number, limited to OpenAI's range."""
    for token, bias in biases.items():
        if not token.strip().isdecimal() or not _number(bias):
            raise fail(f"`body.logit_bias` holds {shown({token: bias})}", "Give a number for each token's number")
    return {token: min(LOGIT_BIAS_LIMIT, max(-LOGIT_BIAS_LIMIT, bias)) for token, bias in biases.items()}


def _logprobs(given: Body, endpoint: str, fail: Fail) -> int | None:
    """How many of the most likely tokens to report; None: no probabilities."""
    if endpoint == COMPLETIONS:
        most: int | None = given.get("logprobs")
    else:
        most = given.get("top_logprobs", 0) if given.get("logprobs") else None
        if most is None and given.get("top_logprobs"):
            raise fail("`body.top_logprobs` is asked without `logprobs`", "Set `logprobs` to true")
    if most is not None and most < 0:
        raise fail("`body` asks for the probabilities of all tokens", "Ask for 0 to 20 of them")
    return most


def _constraint(response_format: Body | None, fail: Fail) -> dict[str, Any] | None:
    """The member of `structured_outputs` that is the same as a response format."""
    if response_format is None:
        return None
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "structural_tag":
        return {"structural_tag": json.dumps(response_format)}
    if kind == "json_schema":
        outer = response_format.get("json_schema")
        schema = outer.get("schema") if isinstance(outer, dict) else None
        if not isinstance(schema, dict):
            raise fail("`body.response_format.json_schema` has no `schema`", "Give it as an object")
        return {"json": schema}
    remedy = "Use text, json_object, json_schema or structural_tag"
    raise fail(f"`body.response_format.type` {shown(kind)} is not one of vLLM's", remedy)
