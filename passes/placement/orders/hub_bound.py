"""Whether a time of a batch is out of reach: the stage of one layer that reads the most, with its number of replicas.

The bound of ``forest_bound.py`` lets a type's layers share one stage of as many replicas as they like, so that they
send each other nothing and sum no gradients. Here the stage of one layer, the hub, has a label of its own. With k
replicas on type t it takes at most tau, so that over its layers and over the values between them and the others, for
any multipliers lambda, mu >= 0::

    sum compute_s (1 - alpha + alpha / k)                                                     <= tau     | lambda
    sum (data_s + bytes spb_t) (1 - beta + beta / k) + sum sync_s share(k)                    <= tau     | mu

    price of a batch >= price_t k tau - (lambda + mu) tau
                      + min over labels of layers of  what the hub's layers come to, by lambda and mu
                                                    + what the others' unit-seconds and values cost, by their types

which holds for a range of k with the price and the share of its first number and the divisors of its last. A time is
out of reach where that is more than all there is to pay with, for every t and every range.

Left out: limits on units but for the hub's, memory, all stages but one.
"""

from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Floats, Problem
from heterps_compile.cost.segments import problem_tables
from heterps_compile.passes.placement.proof.trivial_bounds import GAP

from .forest import Forest

_WIDE = 4.0 ** np.arange(-6, 7)
"""Both multipliers, times what all units may cost: where the search for them begins."""

_NEAR = np.append(0.0, 2.0 ** np.arange(-6, 4))
"""One multiplier, or both, times the larger of the best so far."""

_PASSES = 7
_ROUNDING = 1e-11  # relative; with large multipliers the price is a difference of large numbers
_EXACT = 8  # numbers of replicas that are looked at one by one
_RATIO = 1.25  # of the ends of a range of larger ones


@dataclass(frozen=True, slots=True, eq=False)
class Hub:
    """The layer that reads and makes the most bytes of a problem, and the stages that may hold it.

    Attributes:
        problem: Whose layer it is.
        layer: Its index.
    """

    problem: Problem
    layer: int

    @classmethod
    def of(cls, problem: Problem, forest: Forest) -> "Hub":
        """Return the hub of a problem: of the layers with the most values in the forest, that with the most bytes."""
        count, moved = np.zeros(problem.layer_count), np.zeros(problem.layer_count)
        for layer, parent, size in forest.edges:
            for end in (layer, parent):
                count[end] += 1
                moved[end] += size
        return cls(problem, int(np.lexsort((moved, count))[-1]))

    def is_out_of_reach(self, forest: Forest, time_s: float, paid: "Paid", shares: Floats) -> bool:
        """Say whether it is proven that no plan takes at most so long.

        Args:
            forest: Of plans that take so long.
            time_s: Of a batch.
            paid: What units cost.
            shares: [W, T], of computation in what the other stages cost, as in ``forest_bound.py``.
        """
        problem = self.problem
        for t in np.flatnonzero(problem_tables(problem).usable[self.layer]).tolist():
            most = min(float(problem.max_units[t]), paid.money / paid.price[t] * (1 + GAP))
            if problem.objective == "max-load":
                most = min(most, 1.0)
            for least, last in replica_ranges(int(most)):
                others = _Others(forest, paid.price, shares, time_s)
                if not self._is_dearer(others, _Replicas(t, least, last), paid.money):
                    return False
        return True

    def _is_dearer(self, others: "_Others", hub: "_Replicas", money: float) -> bool:
        """Raise the bound on the price of a batch by one multiplier after the other, until it is more than there is."""
        best, highest = np.ones(2), -np.inf
        for number in range(_PASSES):
            if number % 3 == 0:  # both of them
                tried = np.outer(_NEAR if number else _WIDE * money, best)
            else:
                tried = np.repeat(best[None], len(_NEAR), axis=0)
                tried[:, 2 - number % 3] = _NEAR * best.max()
            tried = tried[np.any(tried > 0, axis=1)]
            prices = self._prices(others, hub, tried)
            if prices.max() > money * others.time_s * (1 + GAP):
                return True
            if prices.max() > highest:
                best, highest = tried[int(np.argmax(prices))], float(prices.max())
        return False

    def _prices(self, others: "_Others", hub: "_Replicas", multipliers: Floats) -> Floats:
        """Return [M], lower bounds on the price of a batch with multipliers [M, 2] of computation and of data."""
        problem, t = self.problem, hub.type
        usable, beta = problem_tables(problem).usable, problem.data_parallel[t]
        barred, divided = ~usable[:, t], 1 - beta + beta / hub.last

        def with_last(times_s: Floats, fractions: Floats) -> Floats:
            """Return [L], what layers take on the type with the last number of replicas."""
            own = np.broadcast_to(fractions, usable.shape)[:, t]
            return np.asarray(np.where(barred, 0.0, times_s[:, t]) * (1 - own + own / hub.last))

        compute_s = with_last(problem.compute_s, problem.alpha)
        data_s = with_last(problem.data_s, problem.beta) + problem.sync_s[:, t] * hub.share(problem)
        types, (count, shares) = problem.type_count, (len(multipliers), len(others.shares))
        of_compute, of_data = others.price * others.shares, others.price * (1 - others.shares)
        costs = np.empty((count, shares, problem.layer_count, types + 1))
        costs[..., :types] = others.forest.costs(of_compute[:, None], of_data[:, None])
        costs[..., types] = (multipliers @ np.stack([compute_s, data_s]))[:, None]
        costs[:, :, barred, types] = np.inf
        costs[:, :, self.layer, :types] = np.inf
        ends = np.empty((count, shares, types + 1))  # what a byte costs at the one stage, and at the other
        ends[..., :types] = of_data * problem.seconds_per_byte
        ends[..., types] = multipliers[:, 1:] * problem.seconds_per_byte[t] * divided
        apart = ends[..., None] + ends[..., None, :]
        apart[..., np.arange(types + 1), np.arange(types + 1)] = 0.0
        least = others.forest.least_labels(
            costs.reshape(-1, *costs.shape[2:]), apart.reshape(-1, types + 1, types + 1)
        ).reshape(count, shares)
        own = others.price[t] * hub.least - multipliers.sum(axis=1)
        return np.asarray(least.max(axis=1) * (1 - _ROUNDING) + own * others.time_s)


@dataclass(frozen=True, slots=True, eq=False)
class Paid:
    """What units cost.

    Attributes:
        price: [T], of a unit, above 0.
        money: What those of a plan may cost together.
    """

    price: Floats
    money: float


@dataclass(frozen=True, slots=True, eq=False)
class _Others:
    """The stages that do not hold the hub: their layers and values, what units cost, shares [W, T], and tau."""

    forest: Forest
    price: Floats
    shares: Floats
    time_s: float


@dataclass(frozen=True, slots=True)
class _Replicas:
    """So many replicas of a stage on a type.

    Attributes:
        type: Index of the device type.
        least, last: How many there are.
    """

    type: int
    least: int
    last: int

    def share(self, problem: Problem) -> float:
        """Return the part of ``sync_s`` that so many replicas take at least."""
        if problem.machines is None:
            return 1 - 1 / self.least
        machines = problem.machines.take(slice(self.type, self.type + 1))
        return float(machines.share(np.array([float(self.least)]))[0])


def replica_ranges(most: int) -> list[tuple[int, int]]:
    """Return ranges that part 1 .. most, those of few replicas narrow."""
    ranges, least = [], 1
    while least <= most:
        last = min(most, least if least <= _EXACT else int(least * _RATIO))
        ranges.append((least, last))
        least = last + 1
    return ranges
