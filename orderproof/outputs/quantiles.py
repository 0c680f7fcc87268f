"""Quantiles of the distributions that bounds are computed from; scipy is imported only when one is asked for."""

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
