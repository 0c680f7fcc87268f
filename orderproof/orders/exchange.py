"""The method `exchange`: start from the cluster order, then swap prompts between batches while that saves experts.

Each prompt is a probability per expert and layer that a step of it uses that expert. A batch leaves expert e idle with
probability Π (1 − p_e), so it reads Σ_e 1 − Π (1 − p_e) experts. The swap of two prompts of two batches that saves most
is made, then the next, until none saves anything: a local search in the pairwise exchange neighbourhood, as in
Kernighan & Lin (1970). It corrects what other methods leave: clusters end anywhere within a batch, and a greedy order
leaves the prompts that fitted nowhere to its last batches.

A batch's prompts should also fit into the token budget of one step (`max_num_batched_tokens`), where there is room
enough on the whole. With answers of equal length, a batch that is read in one step also ends in one, and the next batch
starts together. Prompts of one kind are often long together. What does not fit is read a step later and ends a step
later, and from then on every batch has two steps that read prompts, and with them nearly all experts. (One such batch
of 96 cost a third of what the order saved.)

Comparing all pairs would take quadratic time. So partners are looked for within a stretch of the order, which then
moves on by half its length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.orders.expert_probabilities import MAX_PROBABILITY, expert_probabilities
from orderproof.orders.ranking import FIRST_WINDOW, Ranking, WindowState
from orderproof.orders.view import PromptView
from orderproof.signals.threads import one_thread

BATCH_PROMPTS = 16  # if it is not known how many prompts run at once
STRETCH_BATCHES = 8  # within which partners are looked for: longer stretches, up to the whole file, saved no more
STRETCH_PROMPTS = 256  # at most, unless two batches have more: the cost of a swap grows with stretch and batch
MIN_SAVED = 0.01  # experts of all layers; a swap that saves less is not worth its time
# Share of all experts: sums over 15,000 experts were wrong by at most 0.8e-6 of them. Swaps that only seem to save
# could undo each other without end.
ROUNDING = 1.2e-6
# The token budget is a limit only if batches fill at most this share of it on average. Above it some batch exceeds the
# budget in any order: there the limit gained nothing and cost 4 to 10 % of the saving, below it at most 3 %.
MAX_FILL = 0.8


def rank(prompts: PromptView, spec: OrderSpec, state: WindowState = FIRST_WINDOW) -> Ranking:
    """Rank by the place after the swaps, from 0 in each window; a batch is as many prompts as run at once on average.

    Raises:
        OrderError: the signal does not describe experts.
        SignalError: no routes were captured.
    """
    batch = prompts.at_once() or BATCH_PROMPTS
    start = expert_probabilities(prompts, spec, state)
    budget, token_counts = prompts.served.batched_tokens, prompts.token_counts
    parameters = {**start.clustered.parameters, "batch": batch}
    if budget is None or token_counts is None:
        ranking = start.ranking_of(exchange_order(start.chunks, batch))
    else:
        parameters["batched_tokens"] = budget
        tokens = token_counts[start.indices] * np.fromiter(prompts.samples(start.indices), np.int64)
        ranking = start.ranking_of(exchange_order(start.chunks, batch, tokens, budget))
    return replace(ranking, parameters=parameters)


def exchange_order(
    chunks: Iterable[NDArray[np.float32]], batch: int, tokens: NDArray[np.int64] | None = None, budget: int = 0
) -> NDArray[np.int64]:
    """Swap prompts between batches so that the batches read fewer experts.

    Args:
        chunks: of float32[prompts, layers · experts], probabilities, in the order in which prompts arrive.
        batch: how many prompts run at once.
        tokens: int64[N], the tokens that are read of each arriving prompt; None: not known.
        budget: how many tokens a step reads at most.

    Returns:
        int64[N]: which of the arriving prompts is sent k-th. The same bits on any number of threads.
    """
    if tokens is not None and len(tokens) and batch * tokens.mean() > MAX_FILL * budget:
        tokens = None
    half = batch * max(1, min(STRETCH_BATCHES, STRETCH_PROMPTS // batch) // 2)
    rows = (1 - np.minimum(row, np.float32(MAX_PROBABILITY)) for chunk in chunks for row in chunk)
    idle = np.array(list(islice(rows, 2 * half)))  # of the stretch: probability that a prompt leaves an expert idle
    numbers = np.arange(len(idle))
    sent = [numbers[:0]]
    with one_thread():
        while len(idle):
            row = best_swaps(idle, batch, None if tokens is None else tokens[numbers], budget)
            following = list(islice(rows, half))
            settled, waiting = np.split(row, [half if following else len(row)])
            sent.append(numbers[settled])
            numbers = np.concatenate([numbers[waiting], numbers.max() + 1 + np.arange(len(following))])
            idle = np.array([*idle[waiting], *following])
    return np.concatenate(sent)


def best_swaps(
    idle: NDArray[np.float32], batch: int, tokens: NDArray[np.int64] | None = None, budget: int = 0
) -> NDArray[np.int64]:
    """Make the best swap between two batches until none saves MIN_SAVED and more than the rounding error.

    While batches exceed the token budget, the swap that reduces the excess most is made first; no swap adds to it.

    If prompt i takes the place of j, the batch leaves Σ_e others_j[e] · idle_i[e] experts idle, where others_j is the
    product over the other prompts of that batch. So one matrix product gives the value of every swap.

    Args:
        idle: float32[n, layers · experts], probabilities above 0 that an expert is not used; each `batch` rows are a
            batch.
        tokens, budget: int64[n] and the limit of a batch, as for `exchange_order`.

    Returns:
        int64[n]: which of the rows is k-th.
    """
    idle, row, batch_of = idle.copy(), np.arange(len(idle)), np.arange(len(idle)) // batch
    min_saved = max(MIN_SAVED, ROUNDING * idle.shape[1])
    others = np.concatenate([_products_of_others(idle[batch_of == number]) for number in range(batch_of[-1] + 1)])
    left_idle = others @ idle.T  # [place, prompt]: experts that the batch of the place leaves idle with that prompt
    if tokens is not None and np.sort(tokens)[-batch:].sum() <= budget:
        tokens = None  # any batch fits
    while True:
        own = left_idle.diagonal()
        saved = np.where(batch_of[:, None] == batch_of, 0, left_idle + left_idle.T - own[:, None] - own)
        less_excess = 0
        if tokens is not None:
            reduction = _excess_reduction(tokens[row], batch_of, budget)
            less_excess = int(reduction.max())
            saved[reduction < less_excess] = -np.inf
        here, there = divmod(int(saved.argmax()), len(row))
        if saved[here, there] < min_saved and not less_excess:
            return row
        pair = [here, there]
        row[pair], idle[pair] = row[pair[::-1]], idle[pair[::-1]]
        for number in batch_of[pair]:
            others[batch_of == number] = _products_of_others(idle[batch_of == number])
        touched = np.isin(batch_of, batch_of[pair])
        left_idle[touched] = others[touched] @ idle.T
        left_idle[:, pair] = others @ idle[pair].T


def _products_of_others(idle: NDArray[np.float32]) -> NDArray[np.float32]:
    """[n, e] → [n, e]: for each row the product of all the other rows."""
    products: NDArray[np.float32] = idle.prod(axis=0) / idle
    return products


def _excess_reduction(tokens: NDArray[np.int64], batch_of: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """int64[n, n]: by how many tokens the swap of two places reduces what their batches have above the budget.

    Args:
        tokens, batch_of: int64[n], the tokens of the prompt in each place, and the place's batch.
    """
    total = np.bincount(batch_of, tokens).astype(np.int64)[batch_of]  # of each place's batch
    after = np.maximum(total[:, None] - tokens[:, None] + tokens - budget, 0)  # in the batch of the first place
    now = np.maximum(total - budget, 0)
    return np.where(batch_of[:, None] == batch_of, 0, now[:, None] + now - after - after.T)
