"""What a predicted gain is worth in time and money, and what the trial costs."""

from __future__ import annotations

from dataclasses import dataclass

from orderproof.job.spec import Reporting
from orderproof.measure.verdict import Rule

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Worth:
    """The worth of one order for one run of the whole job. Times in seconds."""

    today_s: float  # generating every prompt in today's order
    saved_s: float
    saved_low_s: float
    saved_high_s: float
    ordering_s: float  # making the order
    trial_s: float  # passes of the whole trial, at the last look
    runs_per_month: float
    price_per_hour: float
    currency: str

    @property
    def saved_per_month(self) -> float:
        """In `currency`."""
        return self.saved_s * self.runs_per_month * self.price_per_hour / SECONDS_PER_HOUR

    @property
    def ordering_share(self) -> float:
        """Time to make the order over time to generate."""
        return self.ordering_s / self.today_s

    @property
    def runs_to_break_even(self) -> float | None:
        """Runs of the job after which the trial has paid for itself; None: never."""
        net = self.saved_s - self.ordering_s
        return self.trial_s / net if net > 0 else None


def worth(
    gain: tuple[float, float, float],
    today_s: float,
    ordering_s: float,
    pass_s: float,
    rule: Rule,
    arms: int,
    reporting: Reporting,
) -> Worth:
    """The worth of a gain over today's order, given with its interval (gain, low, high; fractions).

    Args:
        today_s: of one run of the whole job.
        pass_s: of one pass of the trial, which may measure a sample.
        arms: passes of one block.
    """
    saved, low, high = (today_s * (1 - 1 / (1 + value)) for value in gain)
    return Worth(
        today_s=today_s,
        saved_s=saved,
        saved_low_s=low,
        saved_high_s=high,
        ordering_s=ordering_s,
        trial_s=rule.looks[-1] * arms * pass_s,
        runs_per_month=reporting.runs_per_month,
        price_per_hour=reporting.price_per_hour,
        currency=reporting.currency,
    )


def break_even_prompts(worth: Worth, prompts: int) -> float | None:
    """How many prompts a job must have for one run to pay back this trial; None: never.

    Args:
        prompts: of the job whose `worth` this is; savings grow in proportion to prompts.
    """
    runs = worth.runs_to_break_even
    return None if runs is None else runs * prompts
