"""Can an order be distinguished from a shuffle? A permutation test on how similar neighbouring prompts are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from orderproof.orders.view import AnyPrompts, PromptView, view_of
from orderproof.signals import lexical
from orderproof.signals.registry import readable

SAMPLE_PROMPTS = 2048  # so that a million prompts take hardly longer
RUN_PROMPTS = 16  # the sample is made of runs of neighbours
ROUNDING = 1e-9  # sums in another order differ by less, real differences by more

Similarity = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]


def shuffle_like(
    permutation: NDArray[np.int64],
    prompts: PromptView | AnyPrompts,
    *,
    alpha: float = 0.05,
    shuffles: int = 999,
    seed: int = 0,
) -> tuple[bool, float]:
    """Whether an order cannot be distinguished from a shuffle of the same prompts.

    True: the test finds neighbours neither more nor less similar than chance makes them. False: it finds that they are;
    for a true shuffle it does so with probability `alpha` at most.

    Args:
        permutation: int64[N]; permutation[k] is the index in `prompts` of the k-th.

    Returns:
        The answer, and p with Bonferroni's correction over the statistics of `neighbour_tests`; 1.0 if there are none.
    """
    p_values = neighbour_tests(permutation, prompts, shuffles=shuffles, seed=seed)
    p = min([1.0, *(len(p_values) * p_value for p_value in p_values.values())])
    return p > alpha, p


def neighbour_tests(
    permutation: NDArray[np.int64], prompts: PromptView | AnyPrompts, *, shuffles: int = 999, seed: int = 0
) -> dict[str, float]:
    """Two-sided p-values of the mean similarity of neighbours, by the kind of similarity.

    `lexical`: shared character trigrams; `label`: equal labels, if there are several; `length`: serial correlation of
    the ranks of lengths (Wald & Wolfowitz, 1943), if they differ.

    Exact for any N: the places are sampled without looking at the prompts, and the prompts there are shuffled among
    these places. Two-sided, because a file that alternates its domains is not a shuffle either.
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
    """All places of a short order, otherwise runs of neighbouring places; ascending."""
    if n <= SAMPLE_PROMPTS:
        return np.arange(n)
    runs = random.choice(n // RUN_PROMPTS, SAMPLE_PROMPTS // RUN_PROMPTS, replace=False)
    starts = np.sort(runs) * RUN_PROMPTS + random.integers(n % RUN_PROMPTS + 1)
    return (starts[:, None] + np.arange(RUN_PROMPTS)).ravel()


def _similarities(view: PromptView, sample: list[int]) -> dict[str, Similarity]:
    """Functions of two arrays of places in the sample, of equal shape."""
    texts = [view.text(i) for i in sample]
    rows = lexical.features([readable(text) for text in texts])
    shared = (rows @ rows.T).toarray()
    similarities: dict[str, Similarity] = {"lexical": lambda a, b: shared[a, b]}
    codes_of: dict[str | None, int] = {}
    codes = np.array([codes_of.setdefault(view.labels[i], len(codes_of)) for i in sample])
    if len(codes_of) > 1:
        similarities["label"] = lambda a, b: codes[a] == codes[b]
    lengths = np.array([len(text) for text in texts] if view.token_counts is None else view.token_counts[sample])
    if np.ptp(lengths):
        centred = _ranks(lengths) - (len(sample) - 1) / 2
        similarities["length"] = lambda a, b: centred[a] * centred[b]
    return similarities


def _ranks(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Indices in the sorted values, from 0; equal values share their mean place."""
    _, kind, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[kind]


def _two_sided(statistics: NDArray[np.float64]) -> float:
    """The p-value of the first among all: twice the smaller share of those as high or as low."""
    observed, others = statistics[0], statistics[1:]
    as_high = 1 + np.count_nonzero(others >= observed - ROUNDING)
    as_low = 1 + np.count_nonzero(others <= observed + ROUNDING)
    return min(1.0, float(2 * min(as_high, as_low) / len(statistics)))
