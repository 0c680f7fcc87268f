"""What measuring cost and what promoted orders saved, in hours and in money, from the ledgers alone.

A generation of s seconds in an order with gain g would have taken s·(1 + g): it saved s·g. All generations in the
order of one trial share the error of its gain, so their intervals add up; trials are independent, so theirs add up in
squares.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from orderproof.job.spec import Job
from orderproof.runs.ledger import FILE, Entry, read

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Savings:
    """Sums over some runs. Hours of all of a job's accelerators; money in `currency`, 0 where no price is given."""

    trials: int
    generations: int  # in a promoted order
    cost_hours: float  # of the engine at work for trials and A/A tests; loading it is not in the ledger
    saved_hours: float
    saved_low_hours: float  # of its 95 % interval
    saved_high_hours: float
    cost: float
    saved: float
    saved_low: float
    saved_high: float
    currency: str  # empty: no price, or several currencies
    toy: bool

    @property
    def paid_back(self) -> bool:
        """Whether the lower bound of what was saved exceeds what measuring cost."""
        return self.saved_low_hours > self.cost_hours

    def as_json(self) -> dict[str, JsonValue]:
        """For `--json`."""
        return {**self.__dict__, "paid_back": self.paid_back}


def sum_up(entries: Iterable[Entry]) -> Savings:
    """Sum up some lines of ledgers."""
    rows = list(entries)
    measured = [row for row in rows if row.verb != "generate"]
    generated = [row for row in rows if row.verb == "generate" and row.trial and row.gain is not None]
    priced = {row.currency for row in rows if row.price_per_hour}
    hours, money = _saved(generated, lambda _: 1.0), _saved(generated, lambda row: row.price_per_hour)
    return Savings(
        trials=len(measured),
        generations=len(generated),
        cost_hours=sum(row.seconds for row in measured) / SECONDS_PER_HOUR,
        saved_hours=hours[0],
        saved_low_hours=hours[1],
        saved_high_hours=hours[2],
        cost=sum(row.seconds * row.price_per_hour for row in measured) / SECONDS_PER_HOUR,
        saved=money[0],
        saved_low=money[1],
        saved_high=money[2],
        currency=priced.pop() if len(priced) == 1 else "",
        toy=any(row.toy for row in rows),
    )


def by_month(entries: Iterable[Entry]) -> dict[str, Savings]:
    """The same for each month: 2026-11."""
    months = defaultdict[str, list[Entry]](list)
    for row in entries:
        months[row.ended_utc[:7]].append(row)
    return {month: sum_up(rows) for month, rows in sorted(months.items())}


def read_ledgers(jobs: Mapping[str, Job]) -> dict[str, list[Entry]]:
    """The lines of each job's ledger. Raises LedgerError."""
    return {name: read(job.data_dir / FILE) for name, job in jobs.items()}


def _saved(rows: Sequence[Entry], weight: Callable[[Entry], float]) -> tuple[float, float, float]:
    """Weighted hours saved, and the bounds of their 95 % interval."""
    by_trial = defaultdict[str, list[float]](lambda: [0.0, 0.0, 0.0])
    for row in rows:
        gain = row.gain or 0.0
        bounds = (
            gain,
            gain if row.gain_low is None else row.gain_low,
            gain if row.gain_high is None else row.gain_high,
        )
        for k, bound in enumerate(bounds):
            by_trial[row.trial][k] += weight(row) * row.seconds * bound / SECONDS_PER_HOUR
    middle = sum(sums[0] for sums in by_trial.values())
    below = math.hypot(*(sums[0] - sums[1] for sums in by_trial.values()))
    above = math.hypot(*(sums[2] - sums[0] for sums in by_trial.values()))
    return middle, middle - below, middle + above
