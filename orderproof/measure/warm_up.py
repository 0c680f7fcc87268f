"""The runs before a trial's first slice: they warm the engine up and show how fast it is, and count for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import Engine, Failure, Output, Request
from orderproof.engines.requests import RequestList
from orderproof.job.sampling import asked_samples, asked_tokens
from orderproof.job.spec import Job
from orderproof.measure.trial_records import WarmUp
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.routing.predicted_work import PROMPT_TOKEN_WORK

BATCHES, PREFILL_BATCHES = 8, 2
ONE_TOKEN = {"max_tokens": 1, "min_tokens": 0}
COST_RANGE = (1e-4, 1.0)  # of a prompt token, in generated tokens


def warm_up_engine(job: Job, prompts: TokenizedPrompts, engine: Engine, seed: int) -> WarmUp:
    """Run a few shuffled batches as the job will, then two with a single token each: those are nearly all prefill."""
    seats = job.engine.max_num_seqs * job.engine.replicas
    picked = np.random.default_rng([seed, 0]).permutation(len(prompts))[: BATCHES * seats]
    whole_s, prompt_tokens, output_tokens = _run(job, prompts, engine, picked, None)
    few_s, few_prompt_tokens, few_outputs = _run(job, prompts, engine, picked[: PREFILL_BATCHES * seats], ONE_TOKEN)
    cost = PROMPT_TOKEN_WORK
    if few_outputs and few_prompt_tokens and output_tokens:
        prefill_s = few_s / few_prompt_tokens
        decode_s = max(whole_s - prefill_s * prompt_tokens, 0.01 * whole_s) / output_tokens
        cost = float(np.clip(prefill_s / decode_s, *COST_RANGE))
    return WarmUp(requests=len(picked), seconds=whole_s, prefill_cost=cost)


def _run(
    job: Job, prompts: TokenizedPrompts, engine: Engine, picked: NDArray[np.int64], override: dict[str, int] | None
) -> tuple[float, int, int]:
    """Seconds, prompt tokens and generated tokens of one run."""
    answers: list[Output | Failure] = []
    requests = []
    for k in picked.tolist():
        own = prompts.samplings[k]
        sampling = {**(own or {}), **override} if override else own
        salt = f"warm-up {'prefill' if override else 'whole'}"
        requests.append(Request(k, prompts.token_ids(k), sampling, prompts.lora(k), salt))
    stats = engine.run(request_list(job, requests), job.sampling, answers.append)
    outputs = [answer for answer in answers if isinstance(answer, Output)]
    prompt_tokens = sum(len(prompts.token_ids(output.number)) for output in outputs)
    return stats.wall_s, prompt_tokens, sum(output.output_tokens for output in outputs)


def request_list(job: Job, requests: Sequence[Request]) -> RequestList:
    """Requests that replicas can share, with the tokens and samples that are asked of each."""
    samplings = [request.sampling for request in requests]
    return RequestList(requests, asked_tokens(job, samplings), asked_samples(job, samplings))
