"""Cheapest paths over segments: dynamic programming from the end of the chain, and what no cheap path uses.

Legend: positions 0 .. n, segments (a, c, type) with a cost, Q + 1 states that count stages as far as bounds on their
number need it. ``to_go[a, q]`` is the cost of the cheapest path from position a to the end that begins in state q::

    to_go[n, q] = 0 where q is enough stages
    to_go[a, q] = min over (c, type) of cost(a, c, type) + to_go[c, q + 1]

A segment is on a path cheaper than some limit only where ``from_start[a] + cost + to_go[c] < limit``; the others are
dropped for good. O(segments) per pass; memory O(positions * Q) and one tile.

Left out: the branch and bound that calls this (``time_search.py``).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from heterps_compile.cost.chosen_units import BUDGET_TOLERANCE
from heterps_compile.cost.problem import Floats, Ints, Problem
from heterps_compile.cost.replicas import ReplicaDemand
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Segments

ROUNDING = 1e-10
"""Relative: sums of a segment are differences of running sums; so much may be wrong with them."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentPrices:
    """What a segment costs in any plan whose time of a batch tau lies in (fast_s, slow_s]: a lower bound, by objective.

    ::

        cost         price of a batch, in price per hour times seconds; exact where both ends of the range are equal
        price        price per hour of the fewest units that take at most slow_s
        throughput   the same
        latency      seconds of computation and data movement
        max-load     1, for the one unit

    A cost never falls where the demand rises.

    Attributes:
        problem: Its objective, prices, limits on units and budget, which a segment alone may not exceed.
        slow_s, fast_s: The range.
        multipliers: [T], paid besides for every unit whatever the time: Lagrange multipliers of limits on units.
    """

    problem: Problem
    slow_s: float
    fast_s: float
    multipliers: Floats

    @classmethod
    def at(cls, problem: Problem, slow_s: float) -> "SegmentPrices":
        """Return the prices at one time of a batch, without multipliers."""
        return cls(problem, slow_s, slow_s, np.zeros(problem.type_count))

    @property
    def of_unit(self) -> Floats:
        """Return [T], what a unit costs where the range is one time of a batch; not for ``latency``."""
        own = {"cost": self.problem.price_per_hour * self.slow_s, "max-load": np.ones(self.problem.type_count)}
        return np.asarray(own.get(self.problem.objective, self.problem.price_per_hour) + self.multipliers)

    def units(self, demand: ReplicaDemand) -> Floats:
        """Return the fewest units at the slow end of the range; inf where no number is enough."""
        limit_s = self.slow_s * (1 + ROUNDING)
        if self.problem.objective == "max-load":
            return np.where(demand.once_s <= limit_s, 1.0, np.inf)
        return demand.units(limit_s)

    def of(self, demand: ReplicaDemand, types: Ints | tuple[slice, None, None]) -> Floats:
        """Return the cost of segments of the given types; inf where they are impossible alone."""
        problem, rate = self.problem, self.problem.price_per_hour[types]
        with np.errstate(invalid="ignore"):  # 0 * inf, which the last line answers
            units, cost = self._units_and_cost(demand, rate)
            if np.any(self.multipliers > 0):
                cost += self.multipliers[types] * units
            beyond = units > problem.max_units[types]
            if np.isfinite(problem.budget_per_hour):
                beyond |= rate * units > problem.budget_per_hour * (1 + BUDGET_TOLERANCE)
        cost[beyond] = np.inf
        return cost

    def _units_and_cost(self, demand: ReplicaDemand, rate: Floats) -> tuple[Floats, Floats]:
        """Return the fewest units at the slow end, and the cost without multipliers, anything where impossible."""
        if self.problem.objective == "cost":
            units, cost = demand.units_and_bound(self.slow_s * (1 + ROUNDING))
            if self.fast_s > 0:
                np.maximum(cost, units * self.fast_s, out=cost)
            return units, np.multiply(cost, rate, out=cost)
        units = self.units(demand)
        if self.problem.objective in ("price", "throughput"):
            return units, rate * units
        if self.problem.objective == "max-load":
            return units, units.copy()
        work_s = demand.fixed_compute_s + demand.shared_compute_s + demand.fixed_data_s + demand.shared_data_s
        return units, np.asarray(work_s)


@dataclass(frozen=True, slots=True)
class StageCounts:
    """How far stages are counted: states 0 .. last.

    Attributes:
        least, last: Plans end in states least .. last.
        more: Whether the last state stands for any larger number too.
    """

    least: int
    last: int
    more: bool

    @classmethod
    def at_least(cls, least: int) -> "StageCounts":
        """Count as far as a lower bound needs it; every plan has a stage, so a bound of 1 needs no counting."""
        return cls(0, 0, True) if least <= 1 else cls(least, least, True)

    @classmethod
    def between(cls, least: int, most: int) -> "StageCounts":
        """Count exactly."""
        return cls(least, most, False)

    def start(self) -> Floats:
        """Return the costs [Q + 1] at the beginning of the chain."""
        return np.where(np.arange(self.last + 1) == 0, 0.0, np.inf)

    def finish(self) -> Floats:
        """Return the costs [Q + 1] at its end."""
        return np.where(np.arange(self.last + 1) >= self.least, 0.0, np.inf)

    def after_stage(self, costs: Floats) -> Floats:
        """Give, for costs [..., Q + 1] by state before a stage, the costs by state after it."""
        moved = np.concatenate([np.full_like(costs[..., :1], np.inf), costs[..., :-1]], axis=-1)
        if self.more:
            moved[..., -1] = np.minimum(moved[..., -1], costs[..., -1])
        return moved

    def before_stage(self, costs: Floats) -> Floats:
        """Give, for costs to go [..., Q + 1] by state after a stage, the costs to go by state before it."""
        if self.last == 0:  # nobody counts
            return costs if self.more else np.full_like(costs, np.inf)
        last = costs[..., -1:] if self.more else np.full_like(costs[..., -1:], np.inf)
        return np.concatenate([costs[..., 1:], last], axis=-1)


class SegmentGraph(Protocol):
    """Segments with prices: listed, or made tile by tile."""

    def to_go(self, counts: StageCounts) -> Floats:
        """Return [n + 1, Q + 1], the cost of the cheapest path to the end."""
        ...

    def row(self, first: int) -> tuple[Segments, Floats]:
        """Return the segments that begin at a position, and their costs."""
        ...

    def keep_below(self, counts: StageCounts, to_go: Floats, limit: float, most: int) -> Segments | None:
        """Return the segments that lie on some path cheaper than the limit; None where they are more than ``most``."""
        ...


def cheapest_path(graph: SegmentGraph, counts: StageCounts, to_go: Floats) -> Segments:
    """Return the segments of the cheapest path, in order; there must be one."""
    steps, position, state = [], 0, 0
    while position < len(to_go) - 1:
        segments, cost = graph.row(position)
        state = min(state + 1, counts.last)
        best = int(np.argmin(cost + to_go[segments.end, state]))
        steps.append(segments.keep(slice(best, best + 1)))
        position = int(steps[-1].end[0])
    return Segments.join(steps)


class ListedSegments:
    """A list of segments with their prices."""

    def __init__(self, segments: Segments, prices: SegmentPrices, length: int, deadline: Deadline) -> None:
        self.segments, self._length, self._deadline = segments, length, deadline
        self.cost = prices.of(segments.demand, segments.type)
        self._pairs = _pairs_of(segments)
        self._pair_cost = np.minimum.reduceat(self.cost, self._pairs.starts) if len(self.cost) else self.cost

    def to_go(self, counts: StageCounts) -> Floats:
        """Return [n + 1, Q + 1], the cost of the cheapest path to the end."""
        self._deadline.check()
        to_go = np.full((self._length + 1, counts.last + 1), np.inf)
        to_go[-1] = counts.finish()
        pairs = self._pairs
        for step in reversed(pairs.steps):
            after = self._pair_cost[step.pairs, None] + to_go[pairs.end[step.pairs]]
            to_go[step.firsts] = counts.before_stage(np.minimum.reduceat(after, step.offsets, axis=0))
        return to_go

    def row(self, first: int) -> tuple[Segments, Floats]:
        """Return the segments that begin at a position, and their costs."""
        row = slice(*np.searchsorted(self.segments.first, [first, first + 1]))
        return self.segments.keep(row), self.cost[row]

    def keep_below(self, counts: StageCounts, to_go: Floats, limit: float, most: int) -> Segments | None:
        """Return the segments that lie on some path cheaper than the limit; None where they are more than ``most``."""
        self._deadline.check()
        from_start = np.full((self._length + 1, counts.last + 1), np.inf)
        from_start[0] = counts.start()
        after = np.full(from_start.shape, np.inf)
        pairs = self._pairs
        for step in pairs.steps:
            after[step.firsts] = counts.after_stage(from_start[step.firsts])
            reached, ends = self._pair_cost[step.pairs, None] + after[pairs.first[step.pairs]], pairs.end[step.pairs]
            if len(step.offsets) == 1:  # no end comes twice
                from_start[ends] = np.minimum(from_start[ends], reached)
            else:
                for state in range(counts.last + 1):
                    np.minimum.at(from_start[:, state], ends, reached[:, state])
        through = np.full(len(self.cost), np.inf)
        for state in range(counts.last + 1):
            rest = after[self.segments.first, state] + to_go[self.segments.end, state]
            np.minimum(through, rest, out=through)
        kept = through + self.cost < limit
        return self.segments.keep(kept) if np.count_nonzero(kept) <= most else None


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """Pairs that begin at neighbouring positions and end behind all of these, so that one pass has them all.

    Attributes:
        firsts: [R], where they begin.
        pairs: Which they are.
        offsets: [R], of the first pair of every position among them.
    """

    firsts: Ints
    pairs: slice
    offsets: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """The pairs of positions that segments lie between, whatever their type.

    Attributes:
        first, end: [P], ascending.
        starts: [P], the first segment of each.
        steps: In order. On a chain each has one position; on a lattice all down-sets of a size are one.
    """

    first: Ints
    end: Ints
    starts: Ints
    steps: tuple[_Step, ...]


@lru_cache(maxsize=1)
def _pairs_of(segments: Segments) -> _Pairs:
    """Return the pairs of a list of segments; kept for the list used last, which is priced again."""
    first, end = segments.first, segments.end
    opens = np.ones(len(first), np.bool_)
    opens[1:] = (first[1:] != first[:-1]) | (end[1:] != end[:-1])
    starts = np.flatnonzero(opens)
    pair_first, pair_end = first[starts], end[starts]
    firsts, begins = np.unique(pair_first, return_index=True)
    nearest = pair_end[begins].tolist()  # the first end of every position: ends ascend
    positions, bounds = firsts.tolist(), [*begins.tolist(), len(starts)]
    steps, low = list[_Step](), 0
    while low < len(positions):
        high, reach = low + 1, nearest[low]
        while high < len(positions) and positions[high] < reach:
            reach = min(reach, nearest[high])
            high += 1
        steps.append(_Step(firsts[low:high], slice(bounds[low], bounds[high]), begins[low:high] - bounds[low]))
        low = high
    return _Pairs(pair_first, pair_end, starts, tuple(steps))
