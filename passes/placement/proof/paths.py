"""Cheapest paths over segments: dynamic programming from the end of the chain, and what no cheap path uses.

Legend: positions 0 .. n, segments (a, c, type) with a cost, Q + 1 states that count stages as far as bounds on their
number need it. ``to_go[a, q]`` is the cost of the cheapest path from position a to the end that begins in state q::

    to_go[n, q] = 0 where q is enough stages
    to_go[a, q] = min over (c, type) of cost(a, c, type) + to_go[c, q + 1]

A segment is on a path cheaper than some limit only where ``from_start[a] + cost + to_go[c] < limit``; the others are
dropped for good. O(segments) per pass; memory O(positions * Q) and one tile.

Left out: the branch and bound that calls this (``range_search.py``).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from heterps_compile.cost.problem import Floats, Ints
from heterps_compile.cost.replicas import ReplicaDemand
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Segments


@dataclass(frozen=True, slots=True, eq=False)
class SegmentPrices:
    """What a segment costs in any plan whose time of a batch tau lies in (fast_s, slow_s]: a lower bound.

    With both equal it is the exact price of a batch at tau = slow_s, in price per hour times seconds.

    Attributes:
        slow_s, fast_s: The range.
        price: [T], per unit.
        most_units: [T], that a segment alone may not exceed.
        fee: [T], besides, for every unit whatever the time: multipliers of the limits on units.
    """

    slow_s: float
    fast_s: float
    price: Floats
    most_units: Ints
    fee: Floats

    def of(self, demand: ReplicaDemand, types: Ints | tuple[slice, None, None]) -> Floats:
        """Return the cost of segments of the given types; inf where they need too many replicas, or none are enough."""
        units, unit_seconds = demand.units_and_bound(self.slow_s * (1 + ROUNDING))
        with np.errstate(invalid="ignore"):  # 0 * inf, which the last line answers
            if self.fast_s > 0:
                np.maximum(unit_seconds, units * self.fast_s, out=unit_seconds)
            unit_seconds *= self.price[types]
            if np.any(self.fee > 0):
                unit_seconds += self.fee[types] * units
        unit_seconds[units > self.most_units[types]] = np.inf
        return unit_seconds


ROUNDING = 1e-10
"""Relative: sums of a segment are differences of running sums; so much may be wrong with them."""


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
        """Give, for costs by state before a stage, the costs by state after it."""
        moved = np.concatenate([[np.inf], costs[:-1]])
        if self.more:
            moved[-1] = min(moved[-1], costs[-1])
        return moved

    def before_stage(self, costs: Floats) -> Floats:
        """Give, for costs to go by state after a stage, the costs to go by state before it."""
        return np.append(costs[1:], costs[-1] if self.more else np.inf)


class Prices(Protocol):
    """What segments cost; a cost never falls where the demand rises."""

    @property
    def slow_s(self) -> float:
        """The longest time of a batch that is allowed."""
        ...

    def of(self, demand: ReplicaDemand, types: Ints | tuple[slice, None, None]) -> Floats:
        """Return the cost of segments of the given types."""
        ...


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

    def __init__(self, segments: Segments, prices: Prices, length: int, deadline: Deadline) -> None:
        self.segments, self._length, self._deadline = segments, length, deadline
        self.cost = prices.of(segments.demand, segments.type)
        first, end = segments.first, segments.end
        count = len(first)
        opens = np.ones(count, np.bool_)
        opens[1:] = (first[1:] != first[:-1]) | (end[1:] != end[:-1])
        pairs = np.flatnonzero(opens)  # one for every first and end, whatever the type
        self._pair_end = end[pairs]
        self._pair_cost = np.minimum.reduceat(self.cost, pairs) if count else self.cost
        self._firsts, starts = np.unique(first[pairs], return_index=True)
        self._pair_starts = np.append(starts, len(pairs))

    def to_go(self, counts: StageCounts) -> Floats:
        """Return [n + 1, Q + 1], the cost of the cheapest path to the end."""
        self._deadline.check()
        to_go = np.full((self._length + 1, counts.last + 1), np.inf)
        to_go[-1] = counts.finish()
        for first, ends, cost in reversed(self._rows()):
            to_go[first] = counts.before_stage((cost[:, None] + to_go[ends]).min(axis=0))
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
        for first, ends, cost in self._rows():
            after[first] = counts.after_stage(from_start[first])
            from_start[ends] = np.minimum(from_start[ends], cost[:, None] + after[first])
        through = np.full(len(self.cost), np.inf)
        for state in range(counts.last + 1):
            rest = after[self.segments.first, state] + to_go[self.segments.end, state]
            np.minimum(through, rest, out=through)
        kept = through + self.cost < limit
        return self.segments.keep(kept) if np.count_nonzero(kept) <= most else None

    def _rows(self) -> list[tuple[int, Ints, Floats]]:
        """Return the first positions of segments, ascending, with the ends and costs of the pairs that begin there."""
        rows = [slice(*bounds) for bounds in pairwise(self._pair_starts.tolist())]
        return [
            (first, self._pair_end[row], self._pair_cost[row])
            for first, row in zip(self._firsts.tolist(), rows, strict=True)
        ]
