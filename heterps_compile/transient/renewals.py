"""How often a machine is lost that is replaced each time: the renewal process of its lifetime.

``P(at least m losses by t)`` is the distribution of the sum of ``m`` lifetimes: the convolution of the lifetime with
itself, on a grid of ``_CELLS`` cells by FFT. Each cell's probability is laid on its two ends so that its mean stays.
Beyond ``_MOST_RENEWALS`` in the mean, the moments of renewal theory (Cox 1962, 4.5): mean ``t / u + (v - u^2) / (2
u^2)`` and variance ``v t / u^3`` of lifetimes with mean ``u`` and variance ``v``.

Left out: machines that are old when it begins; times until the next machine is there.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .lifetime import HOUR_S, Weibull

_CELLS = 4096
_MOST_RENEWALS = 40.0
_TAIL = 1e-9
_MOST_SUMS = 1000

Array = NDArray[np.floating[Any]]


def mean_renewals(law: Weibull, time_s: float) -> float:
    """Return how many losses a machine has within some seconds, in the mean."""
    hours = time_s / HOUR_S
    if law.rate_per_hour is not None:
        return hours * law.rate_per_hour
    if hours > _MOST_RENEWALS * law.mean_hours:
        mean, variance = law.mean_hours, law.variance
        return hours / mean + (variance - mean**2) / (2 * mean**2)
    horizon_h, shares = _sums(law, _horizon(hours))
    return float(np.interp(hours, np.linspace(0.0, horizon_h, _CELLS + 1), shares.sum(axis=0)))


def variance_of_renewals(law: Weibull, time_s: float) -> float:
    """Return the variance of a machine's losses within some seconds, of many renewals."""
    hours = time_s / HOUR_S
    return hours * law.rate_per_hour if law.rate_per_hour is not None else law.variance * hours / law.mean_hours**3


def renewal_chances(law: Weibull, times_s: Array, most: int) -> Array:
    """Return the probabilities that a machine has 0, 1, ... up to ``most - 1`` losses by each time: [times, losses]."""
    hours = times_s / HOUR_S
    numbers = np.arange(most)
    if law.rate_per_hour is not None:
        means = hours[:, None] * law.rate_per_hour
        factorials = np.array([math.lgamma(number + 1) for number in numbers])
        chances: Array = np.exp(numbers * np.log(means) - means - factorials)
        return chances
    if hours[-1] > _MOST_RENEWALS * law.mean_hours:
        means = np.array([mean_renewals(law, time_s) for time_s in times_s])[:, None]
        variances = np.array([variance_of_renewals(law, time_s) for time_s in times_s])[:, None]
        chances = np.exp(-((numbers - means) ** 2) / (2 * np.maximum(variances, 1e-6)))
        summed: Array = chances / chances.sum(axis=1, keepdims=True)
        return summed
    horizon_h, shares = _sums(law, _horizon(float(hours[-1])))
    grid = np.linspace(0.0, horizon_h, _CELLS + 1)
    at_least = np.zeros((len(hours), most + 1))
    at_least[:, 0] = 1.0
    for number, share in enumerate(shares[:most], 1):
        at_least[:, number] = np.interp(hours, grid, share)
    return np.maximum(at_least[:, :-1] - at_least[:, 1:], 0.0)


def _horizon(hours: float) -> float:
    """Return a horizon at most a quarter beyond some hours; runs of about one length share it."""
    return float(2.0 ** (math.ceil(3 * math.log2(hours)) / 3))


@lru_cache(maxsize=256)
def _sums(law: Weibull, horizon_h: float) -> tuple[float, Array]:
    """Return the probability that 1, 2, ... lifetimes end by each of the grid's ages: [lifetimes, ages]."""
    ages = np.linspace(0.0, horizon_h, _CELLS + 1)
    alive = law.survival(ages)
    width = ages[1]
    nodes, weights = np.polynomial.legendre.leggauss(4)
    inside = ages[:-1, None] + width * (nodes + 1) / 2
    lived_h = width * (law.survival(inside) @ weights) / 2
    lived_h[0] = law.mean_within(width)
    died = alive[:-1] - alive[1:]
    # of those that die in a cell, the mean part of the cell that they reach
    reached = np.where(died > 0, (lived_h / width - alive[1:]) / np.where(died > 0, died, 1.0), 0.0)
    reached = np.clip(reached, 0.0, 1.0)
    masses = np.zeros(_CELLS + 1)
    masses[:-1] += died * (1 - reached)
    masses[1:] += died * reached
    spectrum = np.fft.rfft(masses, 2 * _CELLS + 2)
    shares = [1 - alive]
    sums = masses
    while shares[-1][-1] > _TAIL and len(shares) < _MOST_SUMS:
        sums = np.maximum(np.fft.irfft(np.fft.rfft(sums, 2 * _CELLS + 2) * spectrum, 2 * _CELLS + 2)[: _CELLS + 1], 0.0)
        shares.append(np.clip(np.cumsum(sums) - sums / 2, 0.0, 1.0))
    return horizon_h, np.array(shares)
