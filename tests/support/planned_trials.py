"""Trials of small jobs, planned and run on engines in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import Engine
from orderproof.job.spec import OrderSpec
from orderproof.measure.plan import Plan, make_plan
from orderproof.measure.trial import begin, run_block
from orderproof.measure.trial_store import History, Trial
from orderproof.orders.registry import make_order
from orderproof.prompts.tokenization import TokenizedPrompts
from tests.support.fake_engine import MOE, FakeEngine, Trouble, mixed, prompts_of
from tests.support.queue_engine import QueueEngine
from tests.support.trial_maker import make_job

SIZE = 96
TOKENS = 20  # of a prompt
DOMAINS = 6


def planned(
    root: Path, labels: list[str] | None = None, samplings: Any = None, history: History | None = None, **changes: Any
) -> Plan:
    """The plan of a job's first trial, or of one after `history`."""
    prompts = prompts_of(labels or mixed(SIZE), samplings=samplings)
    current = make_order(OrderSpec(method="file"), prompts, "md5")
    job = make_job(root, **{"order": {"method": "label"}, **changes})
    return make_plan(job, MOE, prompts, "md5", current, history or History())


def measured(plan: Plan, blocks: int, troubles: dict[int, Trouble] | None = None) -> tuple[Trial, FakeEngine]:
    """`troubles`: by the number of the engine's run; the first two are the warm-up's."""
    with FakeEngine(troubles) as engine:
        return run_blocks(plan, engine, blocks), engine


def run_blocks(plan: Plan, engine: Engine, blocks: int) -> Trial:
    """Begin, or take up what was stopped, and run so many blocks."""
    trial = begin(plan, engine)
    for _ in range(blocks):
        trial = run_block(plan, engine, trial, len(trial.blocks()) + 1)
    return trial


def queued_job(root: Path, lengths: NDArray[np.int64], seats: int, **changes: Any) -> tuple[Plan, QueueEngine]:
    """A job of several domains with natural lengths, on an engine whose gain is known."""
    domains = np.random.default_rng(0).permutation(np.arange(len(lengths)) % DOMAINS)
    size = len(lengths)
    prompts = TokenizedPrompts(
        ids=[f"p{k:05d}" for k in range(size)],
        lines=np.arange(1, size + 1),
        labels=[f"domain {k}" for k in domains.tolist()],
        samplings=[None] * size,
        references=[None] * size,
        rendered=[f"text {k}" for k in domains.tolist()],
        tokens=np.arange(size * TOKENS, dtype=np.int32),
        offsets=np.arange(size + 1) * TOKENS,
    )
    fields: dict[str, Any] = {
        "order": {"method": "label"},
        "engine": {"args": {"max_num_seqs": seats, "enable_prefix_caching": True}},
        "sampling": {"temperature": 0.0, "max_tokens": 4000},
    }
    job = make_job(root, **{**fields, **changes})
    plan = make_plan(job, MOE, prompts, "md5", make_order(OrderSpec(method="file"), prompts, "md5"), History())
    return plan, QueueEngine(lengths, seats, TOKENS)
