"""The ladder of terms, and the best plan known on every rung: good plans that differ.

What a plan costs on fixed terms is a sum over its stages, so a plan that was found on one rung is priced on all of
them at once, and stays wherever it is the cheapest.

Left out: finding plans (``climb.py``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.evaluate import slowest_batch_s
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Floats, Problem

from .stage_list import StageList
from .stage_prices import WORK_WEIGHT, StagePrices, Terms

_LADDER = ((1.03, 2.0), (1.06, 5.0), (1.25, 32.0))  # ratio of neighbouring rungs, up to this multiple of the lowest
_EVEN = 1.06  # ratio of all rungs where there is no lowest throughput to start from
_SECOND_PRICES = 4.0 ** np.arange(-6, 7)  # around what makes the time of a batch as dear as the units
_ALMOST_FREE = 1e9  # price of a second, likewise, that leaves units next to nothing
_LOADED = 0.01  # of the price on what exceeds limits: more work than any plan within them has
_WORK = 1 + 2 * WORK_WEIGHT  # what a price may be too high by: the work in it
_LEAST_GAIN = 1e-9  # relative


def ladder_terms(problem: Problem, lowest: float, highest: float) -> list[Terms]:
    """Return the rungs, from what a slow and cheap plan needs to a fast and dear one.

    Args:
        problem: The problem.
        lowest: Least throughput worth aiming at.
        highest: Largest one; it decides only where nothing says how slow a plan may be.
    """
    if problem.objective == "latency":
        return _second_prices(problem)
    if problem.objective == "price":  # whatever is faster than the floor needs no fewer units
        return [Terms(min(slowest_batch_s(problem), problem.batch / lowest))]
    factors = [1.0]
    has_lowest = problem.min_throughput > 0 or problem.objective != "cost"
    steps = _LADDER if has_lowest else ((_EVEN, highest / lowest),)
    for ratio, most in steps:
        while factors[-1] * ratio <= most:
            factors.append(factors[-1] * ratio)
    return [Terms(problem.batch / (lowest * factor)) for factor in factors]


def _second_prices(problem: Problem) -> list[Terms]:
    slowest_s = slowest_batch_s(problem)
    busy_s = np.where(np.isfinite(problem.compute_s), problem.compute_s + problem.data_s, np.inf).min(axis=1).sum()
    balanced = float(problem.price_per_hour.mean()) / max(float(busy_s), 1e-12)
    free = [Terms(slowest_s, balanced * _ALMOST_FREE)]
    if math.isinf(problem.budget_per_hour) and problem.min_throughput <= 0:
        return free
    return [*(Terms(slowest_s, balanced * float(factor)) for factor in _SECOND_PRICES), *free]


@dataclass(frozen=True, slots=True, eq=False)
class Rung:
    """Terms, and the cheapest plan known on them."""

    terms: Terms
    stages: StageList


class Ladder:
    """The ladder, from the slowest rung to the fastest; every one has a plan."""

    def __init__(self, prices: StagePrices, terms: Sequence[Terms], first: StageList) -> None:
        self._prices = prices
        self._rungs = [Rung(t, first) for t in terms]
        self._all = _together(terms)
        self._paid, self._breach = prices.paid(first, self._all)

    def __len__(self) -> int:
        return len(self._rungs)

    def __getitem__(self, index: int) -> Rung:
        return self._rungs[index]

    def offer(self, stages: StageList) -> bool:
        """Keep a plan wherever it is the cheapest; tell whether it is anywhere."""
        paid, breach = self._prices.paid(stages, self._all)
        won = self._total(paid, breach) < self._total(self._paid, self._breach) * (1 - _LEAST_GAIN)
        for index in np.flatnonzero(won):
            self._rungs[index] = replace(self._rungs[index], stages=stages)
        self._paid, self._breach = np.where(won, paid, self._paid), np.where(won, breach, self._breach)
        return bool(np.any(won))

    def between(self, slow: int) -> int:
        """Put a rung between one and the next, with the cheaper plan of the two; give its index."""
        pair = self._rungs[slow : slow + 2]
        middle = pair[0].terms.near(math.sqrt(pair[1].terms.batch_s / pair[0].terms.batch_s))
        stages = min((rung.stages for rung in pair), key=lambda stages: self._prices.total(stages, middle))
        paid, breach = self._prices.paid(stages, middle)
        self._rungs.insert(slow + 1, Rung(middle, stages))
        self._all = _together([rung.terms for rung in self._rungs])
        self._paid, self._breach = np.insert(self._paid, slow + 1, paid), np.insert(self._breach, slow + 1, breach)
        return slow + 1

    def _total(self, paid: Floats, breach: Floats) -> Floats:
        return paid + self._prices.excess_price * breach

    def promises(self) -> Floats:
        """Return [R - 1], the value that a rung's plan would have, were it as fast as the next rung asks.

        Inf where it is not within limits and budget.
        """
        problem, times_s = self._prices.table.problem, self._times_s[1:]
        paid, breach = self._paid[:-1], self._breach[:-1]
        if problem.objective == "cost":
            return np.asarray(self._total(paid, breach) * times_s / 3600 / problem.batch * 1e6)
        if OBJECTIVES[problem.objective].sums_at_floor:  # its rungs are no throughputs, or there is one alone
            return np.full(len(times_s), np.inf)
        most = _LOADED * self._prices.excess_price if problem.objective == "max-load" else problem.budget_per_hour
        return np.where((breach == 0) & (paid <= most * _WORK), times_s, np.inf)

    def widths(self) -> Floats:
        """Return [R - 1], the ratio of a rung's time of a batch to the next one's."""
        return self._times_s[:-1] / self._times_s[1:]

    @property
    def _times_s(self) -> Floats:
        return np.array([float(rung.terms.batch_s) for rung in self._rungs])


def _together(terms: Sequence[Terms]) -> Terms:
    return Terms(np.array([[t.batch_s] for t in terms]), np.array([[t.second_price] for t in terms]))
