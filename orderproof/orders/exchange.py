"""The cluster order, in which prompts then change places between batches while that saves experts.

Each prompt is a probability per expert and layer that a step of it uses that expert. A batch of prompts leaves expert e
idle with probability Π (1 − p_e), so it reads Σ_e 1 − Π (1 − p_e) experts. The swap of two prompts of two batches that
saves most is made, and then the next one, until none saves anything: a local search in the pairwise exchange
neighbourhood, as Kernighan & Lin (1970) part graphs. It mends what the others cannot: clusters end anywhere within a
batch, and a greedy order leaves to its last batches what fitted nowhere.

Before any saving, no batch shall be more to read than a step has room for, if there is room enough on the whole. Where
answers are equally long, a batch that is read in one step also ends in one, and the next begins together. Prompts of
one kind are often long together; what of them is left to the next step ends a step later for ever after, and every
later batch has two steps that read prompts and with them nearly all experts. (One such batch of 96 took a third of what
the order saved.)

Looking at all pairs would cost time with the square of their number. So partners are looked for within a stretch of the
row, which then moves on by half its length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.orders.expert_probabilities import MOST_LIKELY, offered
from orderproof.orders.ranking import NOTHING, Ranking, WindowState
from orderproof.orders.view import PromptView
from orderproof.signals.registry import Progress
from orderproof.signals.threads import one_thread

BATCH_PROMPTS = 16  # where it is not known how many prompts run at once
STRETCH_BATCHES = 8  # within which partners are looked for: longer stretches, up to the whole row, saved no more
STRETCH_PROMPTS = 256  # at most, unless two batches have more: the cost of a swap grows with stretch and batch
LEAST_SAVED = 0.01  # experts of all layers; a swap that saves less is not worth its time
# Share of all experts: sums of 15,000 were off by 0.8e-6 of them at most. False swaps could undo each other for ever.
ROUNDING = 1.2e-6
# Of a step's room, what a batch may be to read on average where that room is a limit. With fuller ones some batch lacks
# room in any order: there a limit mended nothing and cost 4 to 10 % of the saving, else 3 % at most.
FULL = 0.8


def rank(
    prompts: PromptView, spec: OrderSpec, progress: Progress | None = None, carried: WindowState = NOTHING
) -> Ranking:
    """Ranks are places after the swaps, in each window from 0; a batch is as many prompts as run at once on average.

    Raises:
        OrderError: the signal tells nothing of experts.
        SignalError: no routes were captured.
    """
    batch = prompts.at_once() or BATCH_PROMPTS
    row, room, tokens = offered(prompts, spec, progress, carried), prompts.served.batched_tokens, prompts.token_counts
    parameters = {**row.grouped.parameters, "batch": batch}
    if room is None or tokens is None:
        ranking = row.ranked(exchanged(row.likely, batch))
    else:
        parameters["batched_tokens"] = room
        read = tokens[row.places] * np.fromiter(prompts.samples(row.places), np.int64)
        ranking = row.ranked(exchanged(row.likely, batch, read, room))
    return replace(ranking, parameters=parameters)


def exchanged(
    likely: Iterable[NDArray[np.float32]], batch: int, tokens: NDArray[np.int64] | None = None, room: int = 0
) -> NDArray[np.int64]:
    """Swap prompts between batches so that the batches read fewer experts.

    Args:
        likely: chunks of float32[prompts, layers · experts], probabilities, in the order in which prompts are offered.
        batch: how many prompts run at once.
        tokens: int64[N], to be read of each prompt, in the order in which they are offered; None: not known.
        room: tokens that a step reads at most.

    Returns:
        int64[N]: which prompt, as they were offered, stands k-th. The same bits on any number of threads.
    """
    if tokens is not None and len(tokens) and batch * tokens.mean() > FULL * room:
        tokens = None
    half = batch * max(1, min(STRETCH_BATCHES, STRETCH_PROMPTS // batch) // 2)
    rows = (1 - np.minimum(row, np.float32(MOST_LIKELY)) for chunk in likely for row in chunk)
    near = np.array(list(islice(rows, 2 * half)))  # chances that each prompt leaves each expert idle
    numbers = np.arange(len(near))
    sent = [numbers[:0]]
    with one_thread():
        while len(near):
            row = best_swaps(near, batch, None if tokens is None else tokens[numbers], room)
            following = list(islice(rows, half))
            settled, waiting = np.split(row, [half if following else len(row)])
            sent.append(numbers[settled])
            numbers = np.concatenate([numbers[waiting], numbers.max() + 1 + np.arange(len(following))])
            near = np.array([*near[waiting], *following])
    return np.concatenate(sent)


def best_swaps(
    idle: NDArray[np.float32], batch: int, tokens: NDArray[np.int64] | None = None, room: int = 0
) -> NDArray[np.int64]:
    """Make the best swap between two batches as long as one saves LEAST_SAVED, or what rounding cannot make up.

    As long as one takes tokens away that a batch has beyond its room, the swap that takes most; none brings new ones.

    If prompt i stands in the place of j, its batch leaves Σ_e rest_j[e] · idle_i[e] experts idle, where rest_j is the
    product over the others of that batch. So one matrix product tells what every swap is worth.

    Args:
        idle: float32[n, layers · experts], chances of not being used, above 0; batches are runs of `batch` rows.
        tokens, room: int64[n] and a batch's limit, as of `exchanged`.

    Returns:
        int64[n]: which of the rows stands k-th.
    """
    idle, row, of = idle.copy(), np.arange(len(idle)), np.arange(len(idle)) // batch
    least = max(LEAST_SAVED, ROUNDING * idle.shape[1])
    rest = np.concatenate([_products_of_others(idle[of == one]) for one in range(of[-1] + 1)])
    left = rest @ idle.T  # [place, prompt]: experts that the batch of the place leaves idle with the prompt there
    if tokens is not None and np.sort(tokens)[-batch:].sum() <= room:
        tokens = None  # whatever shares a batch has room
    while True:
        own = left.diagonal()
        saved, fewer = np.where(of[:, None] == of, 0, left + left.T - own[:, None] - own), 0
        if tokens is not None:
            beyond = _beyond(tokens[row], of, room)
            fewer = int(beyond.max())
            saved[beyond < fewer] = -np.inf
        here, there = divmod(int(saved.argmax()), len(row))
        if saved[here, there] < least and not fewer:
            return row
        pair = [here, there]
        row[pair], idle[pair] = row[pair[::-1]], idle[pair[::-1]]
        for one in of[pair]:
            rest[of == one] = _products_of_others(idle[of == one])
        touched = np.isin(of, of[pair])
        left[touched] = rest[touched] @ idle.T
        left[:, pair] = rest @ idle[pair].T


def _products_of_others(idle: NDArray[np.float32]) -> NDArray[np.float32]:
    """[n, e] → [n, e]: of each row the product of all the others."""
    products: NDArray[np.float32] = idle.prod(axis=0) / idle
    return products


def _beyond(tokens: NDArray[np.int64], of: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    """int64[n, n]: by how many tokens the swap of two places lessens what their batches have beyond their room.

    Args:
        tokens, of: int64[n], of the prompt in each place, and its batch.
    """
    read = np.bincount(of, tokens).astype(np.int64)[of]  # by the batch of each place
    after = np.maximum(read[:, None] - tokens[:, None] + tokens - room, 0)  # in the batch of the first place
    now = np.maximum(read - room, 0)
    return np.where(of[:, None] == of, 0, now[:, None] + now - after - after.T)
