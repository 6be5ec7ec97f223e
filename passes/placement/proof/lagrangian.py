"""Limits that couple the segments of a path, as a Lagrangian: a multiplier per unit of each type, and one per price.

The cost of the cheapest path with multipliers, less what they come to for all units there are and for the budget, is a
lower bound on the cost of every plan within the limits, whatever the multipliers::

    bound(m) = min over paths of (cost + m @ used) - m @ limits

Cutting planes raise it (``cutting_planes.py``): types of which a path takes too many get dearer.

Left out: closing the gap that multipliers leave (``label_setting.py``, ``path_programme.py``), and which times of a
batch are looked at (``time_search.py``).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Floats, Placement
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain, Runs, Segments
from heterps_compile.passes.placement.lattice import Lattice

from .cutting_planes import CuttingPlanes
from .linked_chain import LinkedChain
from .longest_segments import LongestPaths
from .paths import SegmentGraph, SegmentPrices, StageCounts, cheapest_path
from .tiled_paths import segment_graph


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """The cheapest path with multipliers.

    Attributes:
        bound: Lower bound on the cost of every plan of the range within the limits; inf where there is no path.
        multipliers: [T + 1], with which it was found: per unit of every type, and per price of units.
        refund: What the multipliers come to for a plan that uses all limits.
        prices: Of the segments, multipliers included.
        graph, to_go: The segments with these prices, and what they cost from every position.
        path: With the work of its segments where these were listed; None where there is none.
        excess: [T + 1], units of the path, and their price, beyond the limits and the budget.
        counts: How far stages were counted.
    """

    bound: float
    multipliers: Floats
    refund: float
    prices: SegmentPrices
    graph: SegmentGraph
    to_go: Floats
    path: Runs | None
    excess: Floats
    counts: StageCounts

    @property
    def is_coupled(self) -> bool:
        """Whether limits keep this from being the answer: multipliers that are not due, or too much used."""
        return bool(np.any(self.excess > 0) or np.any(self.multipliers * self.excess < 0))

    def cheap_lists(self, most: int) -> Iterator[Segments]:
        """Yield the segments of cheap paths, ever less cheap ones, while they are at most ``most``."""
        for slack in (0.01, 0.05, 0.25, 1.0):
            segments = self.graph.keep_below(self.counts, self.to_go, float(self.to_go[0, 0]) * (1 + slack), most)
            if segments is None:
                return
            yield segments


class Lagrangian:
    """Bounds on plans over the segments of a chain.

    Attributes:
        priced: Segments priced so far.
        longest: Paths over the longest segments, which all paths at one time of a batch then take.
    """

    def __init__(
        self, chain: Chain | LinkedChain | Lattice, deadline: Deadline, consider: Callable[[Placement], None]
    ) -> None:
        """Take a chain; ``consider`` is called with the plan of every path."""
        problem = chain.problem
        self._chain, self._deadline, self._consider = chain, deadline, consider
        self._counts = StageCounts.at_least(problem.min_stages)
        # a budget binds for latency alone: there is none for cost, and throughput is what it is compared with
        budget = problem.budget_per_hour if problem.objective == "latency" else np.inf
        self.limits = np.append(problem.max_units.astype(np.float64), budget)
        self._binds = np.isfinite(self.limits)
        self._sizes = np.where(self._binds, np.maximum(self.limits, 1.0), 1.0)
        self.none = np.zeros(len(self.limits))
        self.priced = 0
        self.longest: LongestPaths | None = None

    def solve(self, segments: Segments | None, slow_s: float, fast_s: float, multipliers: Floats) -> Relaxation:
        """Find the cheapest path over some segments, or all, with the least they cost in (fast_s, slow_s]."""
        problem, limits = self._chain.problem, self.limits
        per_unit = multipliers[:-1] + multipliers[-1] * problem.price_per_hour
        prices = SegmentPrices(problem, slow_s, fast_s, per_unit)
        is_one_time = segments is None and slow_s == fast_s and self._counts.last == 0
        longest = self.longest if is_one_time else None
        graph = segment_graph(self._chain, prices, self._deadline, segments)
        to_go = graph.to_go(self._counts) if longest is None else longest.to_go(slow_s, prices.of_unit)[:, None]
        listed = self._chain.segment_count if segments is None else len(segments)
        self.priced += listed if longest is None else longest.ends(slow_s).size
        paid = multipliers > 0
        refund = float(multipliers[paid] @ limits[paid])
        if not np.isfinite(to_go[0, 0]):
            return Relaxation(np.inf, multipliers, refund, prices, graph, to_go, None, self.none, self._counts)
        path: Runs
        if longest is None:
            path = cheapest = cheapest_path(graph, self._counts, to_go)
            units = prices.units(cheapest.demand)
        else:
            self._deadline.check()
            path, units = longest.path(slow_s, prices.of_unit, to_go[:, 0])
        if len(path) > problem.max_stages:  # so far nobody counted that far
            self._counts = StageCounts.between(problem.min_stages, problem.max_stages)
            return self.solve(segments, slow_s, fast_s, multipliers)
        self._consider(self._chain.placement(path))
        used = np.asarray(np.bincount(path.type, units, problem.type_count), np.float64)
        excess = np.append(used, problem.price_per_hour @ used) - limits
        excess[np.isinf(limits)] = 0.0
        bound = float(to_go[0, 0]) - refund
        return Relaxation(bound, multipliers, refund, prices, graph, to_go, path, excess, self._counts)

    def raised(
        self, begin: Relaxation, segments: Segments | None, ceiling: Callable[[], float], most_steps: int
    ) -> Relaxation:
        """Raise a bound by steps on the multipliers until it is as high as the ceiling; return the highest."""
        best = relaxed = begin
        planes: CuttingPlanes | None = None
        slow_s, fast_s = begin.prices.slow_s, begin.prices.fast_s
        for _ in range(most_steps):
            goal = ceiling()
            if not relaxed.is_coupled or best.bound >= goal:
                break
            if planes is None:
                height = goal if np.isfinite(goal) else 2 * abs(relaxed.bound) + 1
                planes = CuttingPlanes(begin.multipliers, begin.bound, np.where(self._binds, height / self._sizes, 0.0))
            planes.add(relaxed.multipliers, relaxed.bound, relaxed.excess)
            multipliers = planes.next()
            if multipliers is None:
                break
            relaxed = self.solve(segments, slow_s, fast_s, multipliers)
            if relaxed.bound > best.bound:
                best = relaxed
        return best
