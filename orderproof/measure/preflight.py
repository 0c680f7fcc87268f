"""Why a trial would be a waste, as far as that is certain before any prediction.

In: a job, its model's facts, the measured prompts, candidate and control. Out: a sentence, or None: measure.
"""

from __future__ import annotations

import numpy as np

from orderproof.job.formatting import with_interval
from orderproof.job.model import ModelFacts, MoeFacts
from orderproof.job.sampling import asked_samples, asked_tokens, max_model_len
from orderproof.job.spec import Job
from orderproof.measure.predicted_gain import PredictedGain
from orderproof.measure.verdict import Rule
from orderproof.orders.order import Order
from orderproof.prompts.tokenization import TokenizedPrompts

PREFILL_TOKENS_PER_OUTPUT_TOKEN = 100  # above it decode, where an order saves, is a sliver of the job
TOUCHED_BY_A_SORTED_BATCH = 0.999  # of the experts: above it there is nothing left to save
# Published for Qwen3-30B-A3B: a domain sends 68-80 % of its routing to its favourite quarter of the experts.
FAVOURITE_SHARE, FAVOURITE_EXPERTS = 0.74, 0.25


def refuse_model(job: Job, model: ModelFacts) -> str | None:
    """Why no order of any prompts can help this model at this batch size; None if one may."""
    if model.moe is None:
        return (
            f"the model {model.path} ({model.architecture}) is dense: every token reads all weights in any order, so "
            "there is nothing to gain"
        )
    if model.moe.top_k >= model.moe.experts:
        return f"{model.path} sends every token to all of its {model.moe.experts} experts, so no order saves any"
    touched = touched_by_a_sorted_batch(model.moe, job.engine.max_num_seqs)
    if touched > TOUCHED_BY_A_SORTED_BATCH:
        return (
            f"a batch of {job.engine.max_num_seqs} touches {touched:.2%} of the {model.moe.experts} experts even when "
            f"sorted (top-{model.moe.top_k}, published concentration of a domain), so no order saves any"
        )
    return None


def structural_refusal(
    job: Job, model: ModelFacts, prompts: TokenizedPrompts, candidate: Order, control: Order | None
) -> str | None:
    """Why no order can help here, as far as that is certain without a prediction; None if it may.

    Args:
        prompts: the measured ones.
        candidate, control: over all prompts; control None: shuffled.
    """
    batch, replicas = job.engine.max_num_seqs, job.engine.replicas
    if reason := refuse_model(job, model):
        return reason
    if len(prompts) < 2:
        return "the job has a single prompt, which has only one order"
    if sum(asked_samples(job, prompts.samplings)) <= batch * replicas:
        where = f"one batch of {batch}" + (f" on each of {replicas} replicas" if replicas > 1 else "")
        return (
            f"all {len(prompts)} prompts run at once in {where}, so their order decides nothing; "
            "sort only jobs of several batches"
        )
    prompt_tokens, output_tokens = _read(job, prompts), most_generated(job, model, prompts)
    if output_tokens < 2 or prompt_tokens / output_tokens > PREFILL_TOKENS_PER_OUTPUT_TOKEN:
        return (
            f"the job is nearly all prefill: {prompt_tokens:.0f} prompt tokens for at most {output_tokens:.0f} "
            "generated, and only decoding gains from an order"
        )
    if control and len(prompts) < len(candidate):
        # Runs of the candidate's neighbours thin the groups of any other order, which would hand it the gain.
        return (
            "a sample is taken along the candidate's order and would thin the groups of the control "
            f"({control.method}, the job's current order): measure all prompts, leave out measure.prompts"
        )
    if control and np.array_equal(control.permutation, candidate.permutation):
        return f"the candidate ({candidate.method}) is the order in which the job runs already"
    return None


def prediction_refusal(predicted: PredictedGain | None, rule: Rule, detectable: float | None) -> str | None:
    """Why a trial would show nothing, by what was predicted of its candidate; None: it may.

    Args:
        predicted: the predicted gain over shuffled, which is no less than that over an order of today that groups. From
            a sample of the prompts it is a low one, and refuses nothing.
        detectable: the smallest gain that the last look detects with 80 % power; None without history.
    """
    if predicted is None or predicted.captured_share < 1:
        return None
    gain = f"the candidate is predicted to gain {with_interval(predicted.gain, predicted.low, predicted.high)}"
    if predicted.high < rule.min_effect:
        return f"{gain}, surely below the minimum effect of {100 * rule.min_effect:g}% (`orderproof plan` says how)"
    if detectable is not None and predicted.gain < detectable:
        return f"{gain}, and the smallest gain that a trial detects here is {detectable:.1%}"
    return None


def _read(job: Job, prompts: TokenizedPrompts) -> float:
    """Tokens that are surely read of a prompt, on average: by each of its samples, unless a prefix cache may help."""
    if job.engine.args.get("enable_prefix_caching") is not False:
        return float(prompts.lengths.mean())
    samples = np.fromiter(asked_samples(job, prompts.samplings), np.int64, len(prompts))
    return float((prompts.lengths * samples).mean())


def most_generated(job: Job, model: ModelFacts, prompts: TokenizedPrompts) -> float:
    """Tokens that a prompt may generate, on average."""
    asked, samples = list(asked_tokens(job, prompts.samplings)), asked_samples(job, prompts.samplings)
    limit = max_model_len(job, model) if None in asked else 0
    room = (limit - prompts.lengths).tolist()
    each = [left if most is None else most for most, left in zip(asked, room, strict=True)]
    return float(np.mean([tokens * n for tokens, n in zip(each, samples, strict=True)]))


def touched_by_a_sorted_batch(moe: MoeFacts, batch: int) -> float:
    """Expected share of a layer's experts that one decode step of a single-domain batch selects.

    Tokens pick experts independently, favourites with FAVOURITE_SHARE of the traffic:
    Σ_groups size·(1 − (1 − p)^batch), p = top_k · traffic / (size · experts).
    """
    groups = ((FAVOURITE_EXPERTS, FAVOURITE_SHARE), (1 - FAVOURITE_EXPERTS, 1 - FAVOURITE_SHARE))
    return sum(
        size * (1 - (1 - min(1.0, moe.top_k * traffic / (size * moe.experts))) ** batch) for size, traffic in groups
    )
