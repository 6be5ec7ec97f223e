"""What no step of any plan is better than: the least price of plans by how long their steps may last.

A plan whose step lasts at most T has only segments whose own bound (``step_segments.py``) is at most T, each with the
fewest replicas that reach it. The cheapest path over those is ``price(T)``, which falls as T grows, so that of all
plans with steps between two times::

    value >= objective( price(upper time), lower time )

The times up to those at which no plan is better than the one that is known are cut into intervals, and the ones with
the lowest bounds into smaller ones::

    price |‾‾|__                     o  bound of an interval: price at its right end, time at its left
          |     |____|‾              the lowest o of all numbers of micro-batches bounds every plan
          +--o--o----o---- T

Left out: that stages share units and that their sum of times is one plan's (``step_closing.py``).
"""

from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.evaluate import slowest_batch_s
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Bools, Floats, Ints, Problem
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.proof.trivial_bounds import GAP

from .step_plans import values_of
from .step_segments import ClassTimes, StepSegments, class_times

_FIRST_INTERVALS = 24
_PARTS = 6  # of an interval that is looked at more closely
_ROUNDS = 5
_WIDE = 1e-6  # relative; intervals in which values differ by less are not cut


@dataclass(frozen=True, eq=False)
class StepTimes:
    """The plans of one number of micro-batches, by how long their steps last.

    Attributes:
        times: Of their segments.
        low_s, high_s: [I], of intervals, ascending.
        price_per_hour: [I, n + 1], the least of the stages from a position on, in steps of at most ``high_s``, and of
            the servers that hold tables.
        values: [I], bounds of plans in the intervals.
    """

    times: ClassTimes
    low_s: Floats
    high_s: Floats
    price_per_hour: Floats
    values: Floats

    @property
    def bound(self) -> float:
        """Return the lowest of the bounds."""
        return float(self.values.min(initial=np.inf))

    def least_values(self, problem: Problem, paid: Floats, lasting_s: Floats, positions: Ints, most: float) -> Floats:
        """Return [C], bounds of plans whose stages before a position are known.

        Args:
            problem: The problem.
            paid: [C], price per hour of those stages.
            lasting_s: [C], a bound of their steps.
            positions: [C], where the next stage begins.
            most: Value from which on a plan is none to look for, and its bound may be any that is as high.
        """
        found = _reached(problem, paid + self.price_per_hour[-1, positions], lasting_s)
        found[self.high_s[-1] * (1 + GAP) < lasting_s] = np.inf
        near = np.flatnonzero(found < most)
        price = paid[near] + self.price_per_hour[:, positions[near]]
        values = _reached(problem, price, np.maximum(self.low_s[:, None], lasting_s[near]))
        values[self.high_s[:, None] * (1 + GAP) < lasting_s[near]] = np.inf
        found[near] = values.min(axis=0, initial=np.inf)
        return found


def step_times(segments: StepSegments, count: int, most: float, deadline: Deadline) -> StepTimes | None:
    """Return the plans of so many micro-batches that may have a value below ``most``; None where there are none."""
    times, problem = class_times(segments, count), segments.of.problem
    quickest_s = np.minimum.accumulate(times.least_s, axis=1)
    least_s = segments.lowest_peak(quickest_s[:, -1])
    servers = problem.least_servers * problem.server_price_per_hour
    cheapest = np.where(np.isfinite(quickest_s[:, -1]), times.price_per_hour[:, 0], np.inf)
    cheapest = segments.least_to_end(cheapest) + servers
    longest_s = _longest_s(problem, float(cheapest[0]), most)
    if not least_s <= longest_s or values_of(problem, cheapest[:1], np.array([least_s]))[0] >= most:
        return None
    prices = np.concatenate([times.price_per_hour, np.full((len(times.price_per_hour), 1), np.inf)], axis=1)

    def cut(low_s: Floats, high_s: Floats) -> StepTimes:
        price = np.array(
            [np.take_along_axis(prices, (quickest_s > high).sum(axis=1)[:, None], axis=1)[:, 0] for high in high_s]
        )
        least = segments.least_to_end(price) + servers
        return StepTimes(times, low_s, high_s, least, _reached(problem, least[:, 0], low_s))

    edges_s = _edges_s(least_s, longest_s, _FIRST_INTERVALS)
    found = cut(edges_s[:-1], edges_s[1:])
    for _ in range(_ROUNDS):
        lowest = np.argsort(found.values, kind="stable")[:_PARTS]
        at_most = _reached(problem, found.price_per_hour[:, 0], found.high_s)
        chosen = np.zeros(len(found.values), np.bool_)
        chosen[lowest] = (found.values < most)[lowest] & (at_most > found.values * (1 + _WIDE))[lowest]
        if deadline.is_over or not chosen.any():
            break
        parts = [
            _edges_s(low, high, _PARTS) for low, high in zip(found.low_s[chosen], found.high_s[chosen], strict=True)
        ]
        finer = cut(np.concatenate([each[:-1] for each in parts]), np.concatenate([each[1:] for each in parts]))
        found = _joined(found, ~chosen, finer)
    return found


def _reached(problem: Problem, price_per_hour: Floats, step_s: Floats) -> Floats:
    """Return the objective of plans; inf where no plan has a price."""
    return np.where(np.isfinite(price_per_hour), values_of(problem, price_per_hour, step_s), np.inf)


def _edges_s(low_s: float, high_s: float, parts: int) -> Floats:
    """Return the ends of so many intervals between two times, in equal ratios."""
    edges = np.geomspace(max(low_s, 1e-12), max(high_s, low_s, 1e-12), parts + 1)
    edges[0], edges[-1] = low_s, max(high_s, low_s)
    return np.asarray(edges, np.float64)


def _joined(found: StepTimes, kept: Bools, finer: StepTimes) -> StepTimes:
    names = ("low_s", "high_s", "price_per_hour", "values")
    both = [np.concatenate([getattr(found, name)[kept], getattr(finer, name)]) for name in names]
    order = np.argsort(both[0], kind="stable")
    return StepTimes(found.times, *(each[order] for each in both))


def _longest_s(problem: Problem, price_per_hour: float, most: float) -> float:
    """Return how long a step may last at most for a plan of that price or more to have a value below ``most``."""
    floor_s, objective = slowest_batch_s(problem), OBJECTIVES[problem.objective]
    paid = objective.paid(price_per_hour, float(problem.batch))
    if paid is None:
        return min(floor_s, most)
    twice = objective.paid(price_per_hour, problem.batch / 2)
    return min(floor_s, most / paid) if twice is not None and twice > paid > 0 else floor_s
