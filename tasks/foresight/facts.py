"""What a job's own files say about what an order can do for it.

In: a job, its model's facts, its prompts and the order in which it runs today. Out: `JobFacts`. Knows no routes.
"""

from __future__ import annotations

from dataclasses import dataclass

from orderproof.tasks.jobs import Job
from orderproof.tasks.models import ModelFacts, MoeFacts
from orderproof.tasks.orders import Order, shuffle_like
from orderproof.tasks.prompts import TokenizedPrompts
from orderproof.tasks.refusals import most_generated, touched_by_a_sorted_batch


@dataclass(frozen=True)
class JobFacts:
    """A job as far as it is known without running it."""

    prompts: int
    batch: int  # sequences that run at once
    prompt_tokens: float  # of a prompt, on average
    output_tokens: float  # that a prompt may generate, on average
    moe: MoeFacts | None
    touched: float | None  # share of a layer's experts that a step of any prompts selects if all were equally popular
    touched_sorted: float | None  # and one of a single domain, by the published concentration
    runs_in: str  # the order of today
    shuffle_like: bool  # whether its neighbours are neither more nor less alike than chance makes them
    neighbours_p: float  # of the permutation test that says so
    labels: int  # distinct ones; 0: not every prompt has one

    @property
    def prefill_share(self) -> float:
        """Of all tokens that the model reads or makes: those of the prompts."""
        return self.prompt_tokens / (self.prompt_tokens + self.output_tokens)

    @property
    def batches(self) -> float:
        """How many full batches the job's prompts make."""
        return self.prompts / self.batch


def facts_of(job: Job, model: ModelFacts, prompts: TokenizedPrompts, current: Order) -> JobFacts:
    """Gather them. `prompts` are all of the job's."""
    moe, batch = model.moe, job.engine.max_num_seqs
    like, p = shuffle_like(current.permutation, prompts)
    labels = set(prompts.labels)
    return JobFacts(
        prompts=len(prompts),
        batch=batch,
        prompt_tokens=float(prompts.lengths.mean()),
        output_tokens=most_generated(job, model, prompts),
        moe=moe,
        touched=None if moe is None else 1 - (1 - min(1.0, moe.top_k / moe.experts)) ** batch,
        touched_sorted=None if moe is None else touched_by_a_sorted_batch(moe, batch),
        runs_in=current.method,
        shuffle_like=like,
        neighbours_p=p,
        labels=0 if None in labels else len(labels),
    )
