"""A bound on the plans of all orders that is cheap however many there are: types of layers as labels of a forest.

For any share w_t in [0, 1] of each type t, a stage on t with C seconds of computation and D of data movement takes at
least ``max(C, D) >= w_t C + (1 - w_t) D`` unit-seconds, and that is a sum over its layers and over the values that
enter and leave it. Whatever the stages, a value whose maker and reader are on two types leaves the one and enters the
other::

    price of a batch >= min over types of layers of   sum over layers of price_t (w_t C + (1 - w_t) data)
                                                    + sum over values between types a and b of
                                                          bytes (price_a (1 - w_a) spb_a + price_b (1 - w_b) spb_b)

Of the values those are counted that make a forest, the largest first, each with its nearest reader: dynamic programming
from the leaves finds the minimum then, in O(layers * types^2). The shares are raised one type after the other. With a
throughput floor, what replicas cannot divide makes a layer's computation count for more (``cost/replicas.py``, rule 2).

``throughput`` halves the time of a batch: one is out of reach where that price, over the time, is more than the
budget. ``max-load`` does the same with units for money. A type runs a layer only where it could alone, in the time,
with some number of units. ``latency`` is a sum of the kind above itself, with prices and shares of 1 for both.

Left out: limits on units, memory, numbers of stages, whole numbers of replicas.
"""

import numpy as np

from heterps_compile.cost.evaluate import slowest_batch_s
from heterps_compile.cost.problem import Floats, Problem
from heterps_compile.passes.placement.proof.trivial_bounds import GAP, longest_s, per_million_samples, trivial_bound

from .forest import Forest

_SHARES = tuple(np.linspace(1.0, 0.0, 9).tolist())
_SWEEPS = 3
_HALVINGS = 16


def forest_bound(problem: Problem) -> float:
    """Return a lower bound on the objective of every plan, in whatever order it takes the layers."""
    bound, money = trivial_bound(problem), float(problem.price_per_hour @ problem.max_units)
    if problem.objective == "max-load":  # every stage takes a unit, whatever it costs
        return _halved(problem, bound, np.ones(problem.type_count), float(problem.max_units.sum()))
    if problem.objective == "throughput":
        return _halved(problem, bound, problem.price_per_hour, min(problem.budget_per_hour, money))
    slow_s = slowest_batch_s(problem)
    forest = Forest.of(problem, slow_s)
    if problem.objective == "latency":
        ones = np.ones(problem.type_count)
        return max(bound, forest.least(ones, ones) * (1 - GAP))
    price = _dearest_shares(forest, problem.price_per_hour) * (1 - GAP)
    return max(bound, per_million_samples(problem, price) if problem.objective == "cost" else price / slow_s)


def _halved(problem: Problem, bound_s: float, price: Floats, money: float) -> float:
    """Bisect the longest time of a batch that no plan can pay for.

    Args:
        problem: The problem.
        bound_s: A time that is proven to be out of reach.
        price: [T], price of a unit, above 0.
        money: Price of all units of a plan together, at most.
    """
    slow_s = min(slowest_batch_s(problem), longest_s(problem))
    low_s, high_s = bound_s, slow_s
    for _ in range(_HALVINGS):
        middle_s = (low_s * high_s) ** 0.5 if low_s > 0 else high_s / 2
        least = _dearest_shares(Forest.of(problem, middle_s), price)
        if least > money * middle_s * (1 + GAP):
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s


def _dearest_shares(forest: Forest, price: Floats) -> float:
    """Raise the bound on the price of a batch by the share of one type after the other."""
    shares = np.ones(len(price))
    best = forest.least(price * shares, price * (1 - shares))
    for _ in range(_SWEEPS):
        before = best
        for t in range(len(price)):
            for share in _SHARES:
                tried = shares.copy()
                tried[t] = share
                found = forest.least(price * tried, price * (1 - tried))
                if found > best:
                    best, shares = found, tried
        if best <= before * (1 + GAP):
            break
    return best
