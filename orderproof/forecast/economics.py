"""What a predicted gain is worth, and what it costs to find out.

In: predicted seconds, a gain and a price. Out: hours, money, and how large a job pays. Knows nothing of how they came
about.
"""

from __future__ import annotations

from dataclasses import dataclass

from orderproof.job.spec import Reporting
from orderproof.measure.verdict import Rule

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Worth:
    """Of one order for one run of the whole job. Times in seconds."""

    today_s: float  # generating every prompt in the order of today
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
        """Money."""
        return self.saved_s * self.runs_per_month * self.price_per_hour / SECONDS_PER_HOUR

    @property
    def ordering_share(self) -> float:
        """Of the generation that it serves."""
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
    """Of a gain over the order of today, with its interval (gain, low, high; fractions).

    Args:
        today_s: of one run of the whole job.
        pass_s: of one pass of the trial, which may measure a sample.
        arms: passes of one block.
    """
    saved, low, high = (today_s * (1 - 1 / (1 + one)) for one in gain)
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


def break_even_prompts(one: Worth, prompts: int) -> float | None:
    """How many prompts a job must have for one run to pay back this trial: its savings grow with their number.

    Args:
        prompts: of the job that `one` is of.
    """
    runs = one.runs_to_break_even
    return None if runs is None else runs * prompts
