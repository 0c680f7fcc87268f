"""The error of outputs that cannot be compared."""

from orderproof.job.errors import OrderproofError


class OutputsError(OrderproofError):
    """Passes whose outputs cannot be compared; the message names the pass and the prompt."""
