"""What recursive halving takes of k replicas, for arrays of stages (``sync_rules/adasum.py`` has it of one).

Legend: p the largest power of two up to k, l = log2 p, u units in a machine, x_j how many replicas of one machine have
their partner of level j = 1 .. l on another (of the machine with most), x_f the same of the k - p that are folded in.
In bytes over a card, with inner as in :mod:`.all_reduce`::

    halves(k)   = sum of 2 / 2^j max(inner, x_j)  + 2 max(inner, x_f) where k > p       gradients
    products(k) = sum of (l - j + 1) max(inner, x_j)                                   products of one tensor

Both rise from one power of two to the next, and among the numbers between two of them, but not from those to the next
power: 3 replicas take longer than 4. The *pieces* in which neither falls are 2, 3, 4, 5 to 7, 8, 9 to 15, and so on.

Replicas of a machine are neighbours: at a distance of u or more every partner is elsewhere, and what is counted of
nearer ones repeats itself.
"""

from functools import lru_cache
from math import lcm

import numpy as np
from numpy.typing import NDArray

from .all_reduce import Machines

Floats = NDArray[np.float64]

MOST_LEVELS = 62
"""More replicas than that many levels have nobody has."""


def power_below(replicas: Floats) -> Floats:
    """Return p of numbers from 1 on."""
    return np.asarray(np.ldexp(1.0, np.frexp(replicas)[1] - 1))


def power_from(replicas: Floats) -> Floats:
    """Return the least power of two that is no less."""
    below = power_below(replicas)
    return np.where(below < replicas, 2 * below, below)


@lru_cache(maxsize=4096)
def crossing(level: int, power: int, units: int) -> int:
    """Return x_j of p replicas on machines of u."""
    distance = 1 << level - 1
    if distance >= units:
        return min(units, power)
    place = np.arange(min(power, lcm(2 * distance, units)))
    is_away = (place ^ distance) // units != place // units
    return int(np.bincount((place // units)[is_away], minlength=1).max())


def halving_shares(replicas: Floats, machines: Machines | None) -> tuple[Floats, Floats]:
    """Return halves(k) and products(k); 0 for one replica.

    Args:
        replicas: k, from 1 on.
        machines: In which they stand, of the same shape; None where each has one to itself.
    """
    power = power_below(replicas)
    levels = np.frexp(power)[1] - 1
    is_folded = replicas > power
    if machines is None:
        return 2 * (1 - 1 / power) + 2.0 * is_folded, np.asarray(levels * (levels + 1) / 2.0)
    shape = np.broadcast_shapes(replicas.shape, machines.units.shape)
    units, inner = np.broadcast_to(machines.units, shape), np.broadcast_to(machines.inner, shape)
    halves, products = np.zeros(shape), np.zeros(shape)
    levels, folded = np.broadcast_to(levels, shape), np.broadcast_to(replicas - power, shape)
    for per_machine in np.unique(units):
        is_own = units == per_machine
        for most in np.unique(levels[is_own]).tolist():
            taken = is_own & (levels == most)
            for level in range(1, most + 1):
                slowest = np.maximum(inner[taken], crossing(level, 1 << most, int(per_machine)))
                halves[taken] += 2 / 2**level * slowest
                products[taken] += (most - level + 1) * slowest
    beyond = np.where(power < units, np.maximum(replicas - units, 0.0), np.minimum(folded, units))
    return halves + np.where(folded > 0, 2 * np.maximum(inner, beyond), 0.0), products


def least_of_ring(machines: Machines | None) -> tuple[Floats, Floats]:
    """Return [T], what halves(k) / 2 and products(k) are at least of ``share(k)``, whatever k, and of (k - 1) / k."""
    if machines is None:
        return np.ones(1), np.full(1, _LEAST_PRODUCTS)
    pairs = zip(machines.units.tolist(), machines.inner.tolist(), strict=True)
    found = [_least_of_ring(int(units), inner) for units, inner in pairs]
    halves, products = np.asarray(found, np.float64).reshape(-1, 2).T
    return halves, products


_LEAST_PRODUCTS = 1.5
"""Of 3 replicas that are a machine each: 1 of a share of 2 / 3."""


@lru_cache(maxsize=1024)
def _least_of_ring(units: int, inner: float) -> tuple[float, float]:
    """Return them piece by piece, as far as a piece has many machines; beyond it a share grows little."""
    first = np.array([start for level in range(1, units.bit_length() + 8) for start in (1 << level, (1 << level) + 1)])
    last = np.append(first[1:] - 1, first[-1]).astype(np.float64)
    first = first.astype(np.float64)
    of = Machines(np.full(len(first), float(units)), np.full(len(first), inner))
    halves, products = halving_shares(first, of)
    share = of.share(last)
    share[-2:] = inner * (1 - 1 / units) + 1  # of all numbers from the last power on
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [np.where(share > 0, each / share, np.inf).min() for each in (halves / 2, products)]
    # products are no more than where each replica is a machine of its own
    return min(1.0, float(ratios[0])), min(_LEAST_PRODUCTS, float(ratios[1]))
