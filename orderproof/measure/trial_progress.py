"""How far a trial is: a bar while slices run, a line in the log after each block."""

from __future__ import annotations

import logging
import math
import time
from types import TracebackType
from typing import Any, Self

from orderproof.job.formatting import signed
from orderproof.measure.estimator import SliceTable, log_ratio_of_rates
from orderproof.measure.evaluate import slice_table
from orderproof.measure.plan import Plan
from orderproof.measure.trial_records import Pass
from orderproof.measure.trial_store import Trial
from orderproof.runs.progress import NewProgress

EVERY_REQUESTS = 16  # the bar moves

logger = logging.getLogger(__name__)


class TrialProgress:
    """Progress of a trial, in requests. A context manager."""

    def __init__(self, plan: Plan, new_progress: NewProgress) -> None:
        self.plan = plan
        self.blocks = max(plan.rule.looks)  # the most that the plan can need
        self.block_requests = len(plan.orders) * len(plan.prompts)
        self.done = 0  # blocks, of those that ran here
        self.started = time.monotonic()
        self._bar = new_progress(plan.job.name, self.blocks * self.block_requests, "requests of the trial")

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def update(self, block: str, finished: int, requests: int) -> None:
        """Called for every finished request, inside the timed region: it must cost next to nothing.

        Args:
            finished, requests: of the block, or of its pairs that are run again.
        """
        if finished < requests and finished % EVERY_REQUESTS:
            return
        at = self.done * self.block_requests + finished
        self._bar.update(at, block, f"{at / (time.monotonic() - self.started):.1f} req/s")

    def log_block(self, trial: Trial, number: int) -> None:
        """Between blocks: what the newest one showed, and how long the rest may take."""
        self.done += 1
        for recorded in trial.passes:
            if recorded.block == number:
                logger.info(
                    "%(pass)s: %(req/s)s req/s, %(tok/s)s tok/s, %(ms per step)s ms per step", pass_row(recorded)
                )
        gain = block_gain(trial, number)
        result = "incomplete" if gain is None else f"candidate {signed(gain)}"
        left = (self.blocks - number) * (time.monotonic() - self.started) / self.done / 60
        logger.info("block %d of at most %d: %s; at most %.0f min more", number, self.blocks, result, max(0, left))


def pass_row(recorded: Pass) -> dict[str, Any]:
    """One arm's figures in a block, for the log and for a table of its block."""
    return {
        "pass": recorded.pass_id,
        "req/s": f"{recorded.throughput_req_s:.2f}",
        "tok/s": f"{recorded.throughput_tok_s:.0f}",
        "ms per step": f"{recorded.time_per_batch_ms:.1f}" if recorded.steps else "?",  # a server tells of none
    }


def block_gain(trial: Trial, number: int) -> float | None:
    """What one block alone shows; None if it is incomplete."""
    numbers = [block.number for block in trial.blocks()]
    if number not in numbers:
        return None
    own = slice(numbers.index(number), numbers.index(number) + 1)
    table = slice_table(trial)
    alone = SliceTable(*(array[own] for array in table.arrays))
    return math.expm1(float(log_ratio_of_rates(alone)))
