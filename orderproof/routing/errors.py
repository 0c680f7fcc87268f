"""The error of everything that reads, captures or replays routes."""

from __future__ import annotations

from orderproof.job.errors import OrderproofError


class RoutingError(OrderproofError):
    """Routes that cannot be used: which file or prompt, why, and what to do."""
