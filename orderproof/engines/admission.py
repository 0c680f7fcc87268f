"""Whether an engine admits requests in the order in which they were sent, which is what an order rests on."""

from __future__ import annotations

import array
import logging

import numpy as np
from numpy.typing import ArrayLike

from orderproof.job.spec import Job

logger = logging.getLogger(__name__)


def count_inversions(admitted_s: ArrayLike) -> int:
    """Requests that were admitted before one sent earlier.

    Args:
        admitted_s: float[n], in the order of sending; NaN: never admitted.
    """
    clock = np.asarray(admitted_s, np.float64)
    ran = clock[np.isfinite(clock)]
    return int((ran < np.maximum.accumulate(ran)).sum()) if len(ran) else 0


def what_may_reorder(job: Job) -> list[str]:
    """Settings by which an engine may admit requests in another order than they were sent, each with what follows."""
    args, found = job.engine.args, []
    if job.engine.server:
        found.append("engine.server: a server may admit requests in another order, above all behind a load balancer")
    if args.get("scheduling_policy", "fcfs") != "fcfs":
        found.append(f"engine.args.scheduling_policy is {args['scheduling_policy']!r} and not first come, first served")
    if args.get("scheduler_cls"):
        found.append(f"engine.args.scheduler_cls is {args['scheduler_cls']!r}, which may schedule in its own order")
    if args.get("data_parallel_size", 1) != 1:
        found.append("engine.args.data_parallel_size: vLLM's load balancer deals single requests to its ranks")
    return found


def log_what_may_reorder(job: Job) -> None:
    """Warn before anything is spent. The record of the run then has how many requests were overtaken."""
    for setting in what_may_reorder(job):
        logger.warning(
            "%s: %s. The record counts requests that were overtaken, where the engine says so", job.name, setting
        )


class AdmissionLog:
    """When each request of a run was admitted: 8 bytes a request. One thread may send while another is answered."""

    def __init__(self) -> None:
        self._clock = array.array("d")

    def send(self) -> int:
        """The place of the next request in the order of sending."""
        self._clock.append(np.nan)
        return len(self._clock) - 1

    def admit(self, place: int, at_s: float) -> None:
        self._clock[place] = at_s

    @property
    def inversions(self) -> int:
        return count_inversions(self._clock)
