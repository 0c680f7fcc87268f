"""What a job's own files say about what an order can do for it.

In: a job, its model's facts, its prompts and the order in which it runs today. Out: `JobFacts`. Knows no routes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from orderproof.job.model import ModelFacts, MoeFacts
from orderproof.job.sampling import asked_samples
from orderproof.job.spec import Job
from orderproof.measure.preflight import most_generated, touched_by_a_sorted_batch
from orderproof.orders.order import Order
from orderproof.orders.shuffle_test import shuffle_like
from orderproof.prompts.tokenization import TokenizedPrompts


@dataclass(frozen=True)
class JobFacts:
    """A job as far as it is known without running it."""

    prompts: int
    batch: int  # sequences that run at once, on each replica
    replicas: int
    samples: float  # of a prompt, on average; each takes a place of the batch
    prompt_tokens: float  # of a prompt, on average
    output_tokens: float  # that a prompt may generate in all its samples, on average
    moe: MoeFacts | None
    touched: float | None  # share of a layer's experts that a step of any prompts selects if all were equally popular
    touched_sorted: float | None  # and one of a single domain, by the published concentration
    runs_in: str  # the order of today
    promoted_by: str | None  # the trial that pinned it; None: it is the file's own
    shuffle_like: bool  # whether its neighbours are neither more nor less alike than chance makes them
    neighbours_p: float  # of the permutation test that says so
    labels: int  # distinct ones; 0: not every prompt has one

    @property
    def today(self) -> str:
        """The order of today, in words."""
        return f"{self.runs_in}, promoted by trial {self.promoted_by}" if self.promoted_by else "the file's own"

    @property
    def prefill_share(self) -> float:
        """Of all tokens that the model reads or makes: those of the prompts, which each sample reads."""
        read = self.prompt_tokens * self.samples
        return read / (read + self.output_tokens)

    @property
    def batches(self) -> float:
        """How many full batches the job's prompts make on each replica."""
        return self.prompts * self.samples / (self.batch * self.replicas)


def facts_of(
    job: Job, model: ModelFacts, prompts: TokenizedPrompts, current: Order, promoted_by: str | None = None
) -> JobFacts:
    """Gather them. `prompts` are all of the job's; `promoted_by`: the trial that pinned `current`."""
    moe, batch = model.moe, job.engine.max_num_seqs
    like, p = shuffle_like(current.permutation, prompts)
    labels = set(prompts.labels)
    return JobFacts(
        prompts=len(prompts),
        batch=batch,
        replicas=job.engine.replicas,
        samples=float(np.mean(list(asked_samples(job, prompts.samplings)))),
        prompt_tokens=float(prompts.lengths.mean()),
        output_tokens=most_generated(job, model, prompts),
        moe=moe,
        touched=None if moe is None else 1 - (1 - min(1.0, moe.top_k / moe.experts)) ** batch,
        touched_sorted=None if moe is None else touched_by_a_sorted_batch(moe, batch),
        runs_in=current.method,
        promoted_by=promoted_by,
        shuffle_like=like,
        neighbours_p=p,
        labels=0 if None in labels else len(labels),
    )


def left_out(job: Job) -> Iterator[str]:
    """What of a job's engine a prediction does not account for."""
    args = job.engine.args
    if args.get("enable_prefix_caching") is not False:
        yield "prefix caching: a beginning that prompts share, or samples of one, counts as read by each of them"
    if int(args.get("pipeline_parallel_size", 1)) > 1:
        yield "pipeline parallelism: a step passes its stages one after the other, and no two batches overlap"
    if int(args.get("data_parallel_size", 1)) > 1:
        yield "data parallelism: its ranks' batches count as one of max_num_seqs"
    if args.get("enable_eplb") or args.get("expert_placement_strategy", "linear") != "linear":
        yield "where experts lie: equal contiguous parts on each device, none of them moved or doubled"
    if args.get("speculative_config"):
        yield "speculative decoding: each step makes one token of a sequence"
