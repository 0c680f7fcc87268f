"""What a machine does to slices, one after the other in time: log slowness, float64[trials, slices]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from tests.support.slice_traces import noise_of

Floats = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, int], Floats]  # generator, trials, slices

RUN = 16  # slices of a trace that stay together


def white(sd: float) -> Noise:
    return lambda rng, trials, slices: rng.normal(0, sd, (trials, slices))


def autoregressive(rho: float, sd: float = 0.15) -> Noise:
    """A wander of first order with white noise of 3 % on top."""

    def make(rng: np.random.Generator, trials: int, slices: int) -> Floats:
        shocks = rng.normal(0, sd, (trials, slices))
        shocks[:, 1:] *= np.sqrt(1 - rho**2)
        return np.asarray(signal.lfilter([1], [1, -rho], shocks, axis=1)) + rng.normal(0, 0.03, (trials, slices))

    return make


def drift(share: float) -> Noise:
    """Each slice slower than the one before by `share`."""
    return lambda rng, trials, slices: share * np.arange(slices) + rng.normal(0, 0.02, (trials, slices))


def step(rng: np.random.Generator, trials: int, slices: int) -> Floats:
    """A neighbour arrives at any time and stays: a third of the speed is gone."""
    slow = np.arange(slices) >= rng.integers(0, slices, (trials, 1))
    return np.asarray(-np.log(1 - 0.33) * slow + rng.normal(0, 0.03, (trials, slices)))


def warm_up(rng: np.random.Generator, trials: int, slices: int) -> Floats:
    """30 % slow at first, gone after some ten slices."""
    return np.asarray(0.3 * np.exp(-np.arange(slices) / 5) + rng.normal(0, 0.03, (trials, slices)))


def bursts(rng: np.random.Generator, trials: int, slices: int) -> Floats:
    """One in 20 slices begins a burst of 2 to 12 slices, 1.4 to 2.2 times slower."""
    noise = rng.normal(0, 0.03, (trials, slices))
    begins = rng.random((trials, slices)) < 1 / 20
    lengths = rng.integers(2, 13, (trials, slices))
    strength = rng.uniform(np.log(1.4), np.log(2.2), (trials, slices))
    left, slowness = np.zeros(trials, np.int64), np.zeros(trials)
    for k in range(slices):
        fresh = begins[:, k] & (left == 0)
        left[fresh], slowness[fresh] = lengths[fresh, k], strength[fresh, k]
        noise[:, k] += np.where(left > 0, slowness, 0)
        left = np.maximum(left - 1, 0)
    return noise


def outliers(rng: np.random.Generator, trials: int, slices: int) -> Floats:
    """One slice in twenty takes twice as long."""
    return np.asarray(np.log(2) * (rng.random((trials, slices)) < 0.05) + rng.normal(0, 0.03, (trials, slices)))


def stalls(rng: np.random.Generator, trials: int, slices: int) -> Floats:
    """One slice in a hundred takes 5 to 25 times as long."""
    stalled = rng.random((trials, slices)) < 0.01
    size = rng.uniform(np.log(5), np.log(25), (trials, slices))
    return np.asarray(np.where(stalled, size, 0) + rng.normal(0, 0.03, (trials, slices)))


def real(name: str) -> Noise:
    """Moving-block bootstrap of a trace: runs of 16 slices, forwards or backwards."""

    def make(rng: np.random.Generator, trials: int, slices: int) -> Floats:
        trace = noise_of(name)
        runs = -(-slices // RUN)
        start = rng.integers(0, len(trace) - RUN + 1, (trials, runs, 1))
        offset = np.arange(RUN)
        backwards = rng.integers(0, 2, (trials, runs, 1))
        picked = start + np.where(backwards, RUN - 1 - offset, offset)
        return np.asarray(trace[picked].reshape(trials, runs * RUN)[:, :slices])

    return make
