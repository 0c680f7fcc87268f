"""The work of requests before they run, and its division among replicas: the engine's, which simulations repeat."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Of a generated token. A step reads thousands of prompt tokens but generates one token per running sequence, so a
# prompt token costs far less; published rates differ by factors of 5 to 50. Wrong predictions are rebalanced.
PROMPT_TOKEN_WORK = 0.1


def predicted_work(prompt_tokens: ArrayLike, generated_tokens: ArrayLike) -> NDArray[np.float64]:
    """float64[N], in generated tokens: each request's prompt tokens × PROMPT_TOKEN_WORK + its generated tokens."""
    work: NDArray[np.float64] = PROMPT_TOKEN_WORK * np.asarray(prompt_tokens) + np.asarray(generated_tokens)
    return work


def equal_shares(work: NDArray[np.float64], replicas: int) -> list[range]:
    """Contiguous places for each replica, cut as near to equal work as whole requests allow.

    Args:
        work: [N] in the order of sending.
    """
    until = np.concatenate([np.zeros(1), work.cumsum()])  # work before each place
    aims = until[-1] * np.arange(1, replicas) / replicas
    middles = (until[:-1] + until[1:]) / 2  # the nearest cut: a sum's rounding error must not move it
    return [range(start, stop) for start, stop in pairwise([0, *np.searchsorted(middles, aims).tolist(), len(work)])]
