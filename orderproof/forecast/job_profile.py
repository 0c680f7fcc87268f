"""The facts of a job that decide how much an order can gain, from its own files, without routes."""

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
    """What is known about a job without running it."""

    prompts: int
    left_out_lines: tuple[str, ...]  # of rows that cannot be used
    batch: int  # sequences that run at once, on each replica
    replicas: int
    samples: float  # of a prompt, on average; each takes a place of the batch
    prompt_tokens: float  # of a prompt, on average
    output_tokens: float  # that a prompt may generate in all its samples, on average
    moe: MoeFacts | None
    touched: float | None  # share of a layer's experts that a step reads if all are equally popular
    touched_sorted: float | None  # the same for a step of one domain, by the published concentration
    runs_in: str  # method of today's order
    promoted_by: str | None  # the trial that promoted it; None: the file's own order
    shuffle_like: bool  # whether its neighbours are as similar as in a random order
    neighbours_p: float  # p-value of that permutation test
    labels: int  # distinct labels; 0: not every prompt has one

    @property
    def today(self) -> str:
        """Today's order, in words."""
        return f"{self.runs_in}, promoted by trial {self.promoted_by}" if self.promoted_by else "the file's own"

    @property
    def prefill_share(self) -> float:
        """Share of prompt tokens in all tokens that the model reads or generates; each sample reads the prompt."""
        prefill = self.prompt_tokens * self.samples
        return prefill / (prefill + self.output_tokens)

    @property
    def batches(self) -> float:
        """How many full batches the job's prompts make on each replica."""
        return self.prompts * self.samples / (self.batch * self.replicas)


def profile_job(
    job: Job, model: ModelFacts, prompts: TokenizedPrompts, current: Order, promoted_by: str | None = None
) -> JobFacts:
    """The facts of a job. `prompts`: all of the job's; `promoted_by`: the trial that promoted `current`."""
    moe, batch = model.moe, job.engine.max_num_seqs
    like, p = shuffle_like(current.permutation, prompts)
    labels = set(prompts.labels)
    return JobFacts(
        prompts=len(prompts),
        left_out_lines=prompts.left_out_lines,
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
    """Properties of a job's engine that a prediction does not take into account."""
    args = job.engine.args
    if args.get("enable_prefix_caching") is not False:
        yield "prefix caching: a prefix that prompts or samples share counts as read by each of them"
    if int(args.get("pipeline_parallel_size", 1)) > 1:
        yield "pipeline parallelism: the stages of a step count one after the other, without overlapping batches"
    if int(args.get("data_parallel_size", 1)) > 1:
        yield "data parallelism: the batches of all ranks count as one batch of max_num_seqs"
    if args.get("enable_eplb") or args.get("expert_placement_strategy", "linear") != "linear":
        yield "expert placement: each device counts with an equal contiguous part of the experts, none moved"
    if args.get("speculative_config"):
        yield "speculative decoding: each step counts with one token per sequence"
