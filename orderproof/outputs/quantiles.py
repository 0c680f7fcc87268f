"""Quantiles of the distributions that bounds are made of.

In: a probability, degrees of freedom. Out: where the distribution has it. All of scipy that verdicts and comparisons
need, imported when first asked: whoever only generates does not wait for it.
"""

from __future__ import annotations


def t_quantile(probability: float, degrees: int) -> float:
    """Of Student's t."""
    from scipy import special

    return float(special.stdtrit(degrees, probability))


def normal_quantile(probability: float) -> float:
    """Of the standard normal distribution."""
    from scipy import special

    return float(special.ndtri(probability))


def noncentrality(power: float, degrees: int, critical: float) -> float:
    """Of the noncentral t distribution that exceeds `critical` with probability `power`."""
    from scipy import special

    return float(special.nctdtrinc(degrees, 1 - power, critical))
