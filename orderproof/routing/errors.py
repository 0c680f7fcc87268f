"""Routing: which experts of a model's layers each token chose, as files and values.

Knows nothing of orders, trials or trackers.
"""

from __future__ import annotations

from orderproof.job.errors import OrderproofError


class RoutingError(OrderproofError):
    """Routes that cannot be used: which file or prompt, why, and what to do."""
