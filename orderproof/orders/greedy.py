"""The method `greedy`: send next the prompt that adds the fewest experts to those of the prompts running beside it.

Each prompt is a probability per expert and layer that a step of it uses that expert. Among running prompts expert e is
idle with probability Π (1 − p_e), so a prompt adds Σ_e p_e · Π (1 − p_e) experts on average. Expectations are used and
not sets of likely experts, because it matters how often an expert is used: on six-domains, by captured decode
frequencies, the best threshold for sets saved 42.0 % of experts, expectations 43.4 %.

Comparing every prompt for every place would take quadratic time. So prompts arrive in the cluster order, in which
similar prompts are near each other, and the next one is taken out of a pool of POOL_PROMPTS.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.orders.expert_probabilities import MAX_PROBABILITY, expert_probabilities
from orderproof.orders.ranking import FIRST_WINDOW, Ranking, WindowState
from orderproof.orders.view import PromptView
from orderproof.signals.threads import one_thread

POOL_PROMPTS = 64
BESIDE_PROMPTS = 31  # a batch of 32 with the next one; for batches of 16 and 64 the order hardly changes


def rank(prompts: PromptView, spec: OrderSpec, state: WindowState = FIRST_WINDOW) -> Ranking:
    """Rank by the place in the greedy order, from 0 in each window.

    Raises:
        OrderError: the signal does not describe experts.
        SignalError: no routes were captured.
    """
    candidates = expert_probabilities(prompts, spec, state)
    return candidates.ranking_of(greedy_order(candidates.chunks, BESIDE_PROMPTS))


def greedy_order(chunks: Iterable[NDArray[np.float32]], beside: int, pool: int = POOL_PROMPTS) -> NDArray[np.int64]:
    """Order prompts so that each adds few experts to those of the `beside` prompts before it.

    With captured decode frequencies as probabilities and all prompts in the pool it is the oracle: the best that a
    greedy order can reach.

    Args:
        chunks: of float32[prompts, layers · experts], probabilities, in the order in which prompts arrive.
        pool: how many prompts there are to choose from at each place; time and memory grow with it.

    Returns:
        int64[N]: which of the arriving prompts is sent k-th; of equally good ones the one that took the pool's earlier
        slot. The same bits on any number of threads.
    """
    rows = (row for chunk in chunks for row in chunk)
    waiting = np.array(list(islice(rows, pool)))
    numbers = np.arange(len(waiting))  # of the waiting prompts, in order of arrival; -1: the slot is empty
    idle = np.zeros(waiting.shape[-1])  # per expert, logarithm of the probability that no running prompt uses it
    running: deque[NDArray[np.float64]] = deque()
    sent: list[int] = []
    with one_thread():
        while (numbers >= 0).any():
            added = np.where(numbers >= 0, waiting @ np.exp(idle), np.inf)
            slot = int(added.argmin())
            sent.append(int(numbers[slot]))
            running.append(np.log1p(-np.minimum(waiting[slot], MAX_PROBABILITY).astype(np.float64)))
            idle += running[-1]
            if len(running) > beside:
                idle -= running.popleft()
            following = next(rows, None)
            if following is None:
                numbers[slot] = -1
            else:
                waiting[slot], numbers[slot] = following, numbers.max() + 1
    return np.array(sent, np.int64)
