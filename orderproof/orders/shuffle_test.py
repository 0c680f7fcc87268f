"""Is an order as good as shuffled? A permutation test on how similar neighbours are.

In: a permutation and prompts. Out: yes or no with its p-value. Knows nothing of engines or trials.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from orderproof.orders.view import AnyPrompts, PromptView, view_of
from orderproof.signals import lexical
from orderproof.signals.registry import readable

SAMPLE_PROMPTS = 2048  # a million prompts then take hardly longer
RUN_PROMPTS = 16  # the sample is made of runs of neighbours
ROUNDING = 1e-9  # sums in another order differ by less, true differences by more

Similarity = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]


def shuffle_like(
    permutation: NDArray[np.int64],
    prompts: PromptView | AnyPrompts,
    *,
    alpha: float = 0.05,
    shuffles: int = 999,
    seed: int = 0,
) -> tuple[bool, float]:
    """Whether an order cannot be told from a shuffle of the same prompts.

    True means: neighbours are neither more nor less alike than chance puts together, as far as the test can see; a true
    shuffle is called anything else with probability `alpha` at most. False means that they are.

    Args:
        permutation: int64[N]; permutation[k] is the index in `prompts` of the k-th.

    Returns:
        The answer, and p: Bonferroni's over the statistics of `neighbour_tests`. 1.0 if there is nothing to tell by.
    """
    p_values = neighbour_tests(permutation, prompts, shuffles=shuffles, seed=seed)
    p = min([1.0, *(len(p_values) * each for each in p_values.values())])
    return p > alpha, p


def neighbour_tests(
    permutation: NDArray[np.int64], prompts: PromptView | AnyPrompts, *, shuffles: int = 999, seed: int = 0
) -> dict[str, float]:
    """Two-sided p-values of the mean similarity of neighbours, by what they are compared by.

    `lexical`: shared letter triples; `label`: equal labels, where there are several; `length`: serial correlation of
    the lengths' ranks (Wald & Wolfowitz, 1943), where they differ.

    Exact for any N: the sampled places are drawn without looking at the prompts, and the prompts found there are
    shuffled among these places. Two-sided, because a file that deals its domains out in turn is no shuffle either.
    """
    view = view_of(prompts)
    random = np.random.Generator(np.random.PCG64(seed))
    places = _sampled_places(len(permutation), random)
    if len(places) < 2:
        return {}
    sample = np.asarray(permutation)[places].tolist()
    left = np.flatnonzero(np.diff(places) == 1)
    rows = np.tile(np.arange(len(sample)), (shuffles + 1, 1))
    random.permuted(rows[1:], axis=1, out=rows[1:])  # row 0 stays as the order has it
    return {
        name: _two_sided(similarity(rows[:, left], rows[:, left + 1]).mean(axis=1, dtype=np.float64))
        for name, similarity in _similarities(view, sample).items()
    }


def _sampled_places(n: int, random: np.random.Generator) -> NDArray[np.int64]:
    """All places of a short order, otherwise runs of neighbouring ones; ascending."""
    if n <= SAMPLE_PROMPTS:
        return np.arange(n)
    runs = random.choice(n // RUN_PROMPTS, SAMPLE_PROMPTS // RUN_PROMPTS, replace=False)
    starts = np.sort(runs) * RUN_PROMPTS + random.integers(n % RUN_PROMPTS + 1)
    return (starts[:, None] + np.arange(RUN_PROMPTS)).ravel()


def _similarities(view: PromptView, sample: list[int]) -> dict[str, Similarity]:
    """Functions of two equal arrays of places in the sample."""
    texts = [view.text(i) for i in sample]
    rows = lexical.features([readable(text) for text in texts])
    shared = (rows @ rows.T).toarray()
    found: dict[str, Similarity] = {"lexical": lambda a, b: shared[a, b]}
    kinds: dict[str | None, int] = {}
    codes = np.array([kinds.setdefault(view.labels[i], len(kinds)) for i in sample])
    if len(kinds) > 1:
        found["label"] = lambda a, b: codes[a] == codes[b]
    lengths = np.array([len(text) for text in texts] if view.token_counts is None else view.token_counts[sample])
    if np.ptp(lengths):
        centred = _ranks(lengths) - (len(sample) - 1) / 2
        found["length"] = lambda a, b: centred[a] * centred[b]
    return found


def _ranks(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Indices in the sorted values, from 0; equal values share their mean place."""
    _, kind, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[kind]


def _two_sided(statistics: NDArray[np.float64]) -> float:
    """Of the first among all: the share that is as high or as low, whichever is smaller, doubled."""
    observed, others = statistics[0], statistics[1:]
    as_high = 1 + np.count_nonzero(others >= observed - ROUNDING)
    as_low = 1 + np.count_nonzero(others <= observed + ROUNDING)
    return min(1.0, float(2 * min(as_high, as_low) / len(statistics)))
