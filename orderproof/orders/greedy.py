"""One prompt after the other, each the one that brings the fewest new experts to those that run beside it.

Each prompt is a probability per expert and layer that a step of it uses that expert. Of a window of running prompts,
expert e is idle with probability Π (1 − p_e), so a prompt brings Σ_e p_e · Π (1 − p_e) experts on average that the
window does not read anyway. Expectations and not sets of likely experts, because how often an expert is used matters:
on six-domains, by real decode frequencies, the best threshold for sets saved 42.0 % of experts, expectations 43.4 %.

Looking at every prompt for every place would cost time with the square of their number. So prompts come in the cluster
order, which puts likely neighbours near, and the next one is taken out of the POOL_PROMPTS that stand first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.orders.expert_probabilities import MOST_LIKELY, offered
from orderproof.orders.ranking import NOTHING, Ranking, WindowState
from orderproof.orders.view import PromptView
from orderproof.signals.registry import Progress
from orderproof.signals.threads import one_thread

POOL_PROMPTS = 64
BESIDE_PROMPTS = 31  # with the next one a batch of 32; for batches of 16 and 64 the order is hardly another


def rank(
    prompts: PromptView, spec: OrderSpec, progress: Progress | None = None, carried: WindowState = NOTHING
) -> Ranking:
    """Ranks are places in the greedy order, in each window from 0.

    Raises:
        OrderError: the signal tells nothing of experts.
        SignalError: no routes were captured.
    """
    row = offered(prompts, spec, progress, carried)
    return row.ranked(fewest_new(row.likely, BESIDE_PROMPTS))


def fewest_new(likely: Iterable[NDArray[np.float32]], beside: int, pool: int = POOL_PROMPTS) -> NDArray[np.int64]:
    """Put prompts in a row so that each brings few new experts to the `beside` ones before it.

    With real decode frequencies for `likely` and as many in the pool as there are, it is the oracle: the best that a
    greedy order could do.

    Args:
        likely: chunks of float32[prompts, layers · experts], probabilities, in the order in which prompts are offered.
        pool: how many prompts there are to choose from at each place; time and memory follow it.

    Returns:
        int64[N]: which prompt, as they were offered, stands k-th. Of equally good ones the one that waits in the place
        of an earlier one. The same bits on any number of threads.
    """
    rows = (row for chunk in likely for row in chunk)
    table = np.array(list(islice(rows, pool)))  # what there is to choose from
    numbers = np.arange(len(table))
    idle = np.zeros(table.shape[-1])  # per expert, logarithm of the chance that no running prompt uses it
    running: deque[NDArray[np.float64]] = deque()
    sent: list[int] = []
    with one_thread():
        while (numbers >= 0).any():
            new = np.where(numbers >= 0, table @ np.exp(idle), np.inf)
            place = int(new.argmin())
            sent.append(int(numbers[place]))
            running.append(np.log1p(-np.minimum(table[place], MOST_LIKELY).astype(np.float64)))
            idle += running[-1]
            if len(running) > beside:
                idle -= running.popleft()
            following = next(rows, None)
            if following is None:
                numbers[place] = -1
            else:
                table[place], numbers[place] = following, numbers.max() + 1
    return np.array(sent, np.int64)
