"""The sign-flip test is exact: it counts what counting every pattern one by one counts, ties included."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderproof.measure.sign_flip import sign_flip_p

BLOCKS = [0.06, -0.02, 0.05, -0.01, 0.04, 0.07, -0.03, 0.02, 0.06, 0.0]  # log ratios

finite = st.floats(-2, 2, allow_subnormal=False)
with_ties = st.integers(-3, 3).map(lambda k: k / 4)


def counted_one_by_one(values: list[float]) -> float:
    exact = [Fraction(value) for value in values]
    observed = sum(exact)
    patterns = product((1, -1), repeat=len(exact))
    at_least = sum(
        sum(sign * value for sign, value in zip(pattern, exact, strict=True)) >= observed for pattern in patterns
    )
    return at_least / 2 ** len(exact)


@settings(deadline=None)
@given(st.one_of(st.lists(finite, min_size=1, max_size=8), st.lists(with_ties, min_size=1, max_size=8)))
def test_sign_flip_p_counts_every_pattern(values: list[float]) -> None:
    assert sign_flip_p(values) == counted_one_by_one(values)


@settings(max_examples=5, deadline=None)
@given(st.lists(st.one_of(finite, with_ties), min_size=12, max_size=12))
def test_sign_flip_p_counts_every_pattern_of_twelve(values: list[float]) -> None:
    assert sign_flip_p(values) == counted_one_by_one(values)


@pytest.mark.parametrize("values", [[1.0, -1.0, -1e-30], [1.0, -1.0, 1e-30], [0.1, 0.2, -0.3], [5e-324, -1.0, 1.0]])
def test_sign_flip_p_tells_a_tie_from_the_narrowest_miss(values: list[float]) -> None:
    assert sign_flip_p(values) == counted_one_by_one(values)


@pytest.mark.parametrize("faster", [0, 13, 25, 40])
def test_forty_blocks_of_equal_size_follow_the_binomial(faster: int) -> None:
    values = [0.03] * faster + [-0.03] * (40 - faster)
    at_least = sum(math.comb(40, k) for k in range(faster, 41))
    assert sign_flip_p(values) == at_least / 2**40


def test_forty_blocks_of_every_size_are_counted_exactly() -> None:
    """Powers of two, the smallest negative: only the observed pattern and that with the smallest flipped reach it."""
    wide = [-1.0] + [2.0**k for k in range(1, 78, 2)]
    assert sign_flip_p(wide) == 2 / 2**40


@settings(deadline=None)
@given(st.permutations(BLOCKS), st.integers(-40, 40))
def test_sign_flip_p_ignores_the_blocks_order_and_the_unit(values: list[float], exponent: int) -> None:
    assert sign_flip_p([math.ldexp(value, exponent) for value in values]) == sign_flip_p(BLOCKS)
