"""How many rows of a job may have no output: `tolerated_failures`, a share of all rows."""

from __future__ import annotations

import math

from orderproof.job.spec import Job


def tolerates(job: Job, failed: int, total: int) -> bool:
    """Whether a job goes on without so many of its rows."""
    return failed / total <= job.generate.tolerated_failures  # a quotient: in floating point 0.29 * 100 is less than 29


def tolerance(job: Job) -> str:
    """The setting with its value, for a message."""
    return f"`tolerated_failures` under `generate` in params.yaml is {job.generate.tolerated_failures:g}"


def sufficient(failed: int, total: int) -> str:
    """What to set so that so many rows are tolerated."""
    return f"set `tolerated_failures` to {math.ceil(failed / total * 10_000) / 10_000:g}"
