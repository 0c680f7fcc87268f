"""How many tokens and samples a job asks of each prompt, within which limits, and how a finished request ends.

Names and defaults are those of vLLM's SamplingParams; a prompt's own sampling goes before the job's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orderproof.job.model import ModelFacts, read_model
from orderproof.job.spec import Job, JobError

MAX_COUNT = 2**31 - 1  # tokens or samples of one prompt: int32
VLLM_MAX_TOKENS = 16  # vLLM's default of `max_tokens`
FINISHED = ("stop", "length", "repetition")  # vLLM's finish reasons of a request without an error
# Members of SamplingParams that no job and no prompt may set, and why.
REFUSED_SAMPLING = {
    "prompt_logprobs": "Probabilities of the prompt are not delivered: leave it out",
    "prompt_logprob_token_ids": "Probabilities of the prompt are not delivered: leave it out",
    "output_kind": "Only finished outputs are delivered: leave it out",
}

# All members of vLLM's SamplingParams that a request may set: as columns of a prompt file they would have no effect.
SAMPLING_NAMES = frozenset({
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p",
    "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs",
    "detokenize", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
    "structured_outputs", "logit_bias", "allowed_token_ids", "bad_words", "thinking_token_budget",
    "repetition_detection", "extra_args",
})  # fmt: skip

Samplings = Iterable[Mapping[str, Any] | None]  # each prompt's own


def is_count(value: Any) -> bool:
    """Whether `value` is a number of tokens or samples that can be asked of a prompt."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT


def asked_tokens(job: Job, samplings: Samplings) -> Iterator[int | None]:
    """Tokens asked of each prompt; None: no limit but the model's length (`max_tokens: null`).

    Raises:
        JobError: the job's `max_tokens` is no number of tokens.
    """
    default = job.sampling.get("max_tokens", VLLM_MAX_TOKENS)
    if default is not None and not is_count(default):
        where = f"jobs.{job.name}.sampling.max_tokens"
        raise JobError(f"{where} must be a whole number from 1 to {MAX_COUNT}, not {default!r}")
    return ((own or {}).get("max_tokens", default) for own in samplings)


def asked_samples(job: Job, samplings: Samplings) -> Iterator[int]:
    """Completions asked of each prompt: `n`, by default 1."""
    default = job.sampling.get("n", 1)
    return ((own or {}).get("n", default) for own in samplings)


def max_model_len(job: Job, model: ModelFacts | None = None) -> int:
    """The longest sequence that the job's engine takes, prompt and output together, in tokens.

    Args:
        model: facts of the job's model, if the caller has read them already.

    Raises:
        JobError: neither the job nor the model's config.json gives it.
    """
    given = job.engine.args.get("max_model_len")
    if isinstance(given, int) and given > 0:
        return given
    found = (model or read_model(job.model_path, job.model)).max_position_embeddings
    if found is None:
        raise JobError(
            f"the model in {job.model} does not give its maximum sequence length: set "
            f"jobs.{job.name}.engine.args.max_model_len in params.yaml"
        )
    return found


def is_cut_short(finish_reason: str | None, tokens: int | None, asked: int | None) -> bool:
    """Whether an output ended at the model's length: vLLM's reason is the same as for the length that was asked.

    Args:
        tokens: in the output; None: not recorded.
        asked: `max_tokens`; None: no limit.
    """
    return finish_reason == "length" and tokens is not None and asked is not None and tokens < asked
