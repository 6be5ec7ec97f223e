"""Limits on units as fees: the cheapest path over segments with Lagrange multipliers, a fee per unit beside its price.

The cost of the cheapest path with fees, less the fees of all units there are, is a lower bound on the cost of every
plan within the limits, whatever the fees. Subgradient steps raise it: types of which a path takes too many get dearer.

Left out: closing the gap that fees leave (``label_setting.py``, ``path_programme.py``), ranges (``range_search.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Floats, Placement
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain, Segments

from .linked_chain import LinkedChain
from .paths import ROUNDING, SegmentGraph, SegmentPrices, StageCounts, cheapest_path
from .segment_graph import segment_graph

_STEPS_FIRST, _STEPS = 40, 8  # for all times of a batch; for a range of them
_SHRINK = 0.7  # of the steps' length, after one that did not raise the bound


@dataclass(frozen=True, slots=True, eq=False)
class FeeSolution:
    """The cheapest path with a fee per unit.

    Attributes:
        bound: Lower bound on the value of every plan of the range within the limits; inf where there is no path.
        fee: [T], with which it was found.
        path: None where there is none.
        excess: [T], units of the path beyond the limits.
        counts: How far stages were counted.
    """

    bound: float
    fee: Floats
    graph: SegmentGraph
    to_go: Floats
    path: Segments | None
    excess: Floats
    counts: StageCounts

    @property
    def is_coupled(self) -> bool:
        """Whether limits on units keep this from being the answer: fees that are not due, or too many units."""
        return bool(np.any(self.excess > 0) or np.any(self.fee * self.excess < 0))


class FeeBounds:
    """Bounds on plans over the segments of a chain."""

    def __init__(self, chain: Chain | LinkedChain, deadline: Deadline, consider: Callable[[Placement], None]) -> None:
        """Take a chain; ``consider`` is told of the plan of every path."""
        self._chain, self._deadline, self._consider = chain, deadline, consider
        self._counts = StageCounts.at_least(chain.problem.min_stages)

    def solve(self, segments: Segments | None, slow_s: float, fast_s: float, fee: Floats) -> FeeSolution:
        """Find the cheapest path over some segments, or all, with the least they cost in (fast_s, slow_s]."""
        problem = self._chain.problem
        prices = SegmentPrices(slow_s, fast_s, problem.price_per_hour, problem.max_units, fee)
        graph = segment_graph(self._chain, prices, self._deadline, segments)
        to_go = graph.to_go(self._counts)
        limits = problem.max_units
        if not np.isfinite(to_go[0, 0]):
            return FeeSolution(np.inf, fee, graph, to_go, None, np.zeros(len(limits)), self._counts)
        path = cheapest_path(graph, self._counts, to_go)
        if len(path) > problem.max_stages:  # so far nobody counted that far
            self._counts = StageCounts.between(problem.min_stages, problem.max_stages)
            return self.solve(segments, slow_s, fast_s, fee)
        self._consider(self._chain.placement(path))
        units = path.demand.units(slow_s * (1 + ROUNDING))
        excess = np.asarray(np.bincount(path.type, units, len(limits)), np.float64) - limits
        return FeeSolution(float(to_go[0, 0] - fee @ limits), fee, graph, to_go, path, excess, self._counts)

    def raised(
        self, segments: Segments | None, slow_s: float, fast_s: float, fee: Floats, ceiling: float
    ) -> FeeSolution:
        """Raise the bound of a range by subgradient steps of Polyak's length, until it is as high as the ceiling."""
        steps = _STEPS_FIRST if fast_s == 0 else _STEPS
        best = solution = self.solve(segments, slow_s, fast_s, fee)
        scale = 1.0
        for _ in range(steps):
            if not solution.is_coupled or best.bound >= ceiling:
                break
            ascent = np.where((solution.fee > 0) | (solution.excess > 0), solution.excess, 0.0)
            length = scale * (ceiling - solution.bound) / float(ascent @ ascent)
            fee = np.maximum(0.0, solution.fee + length * ascent)
            solution = self.solve(segments, slow_s, fast_s, fee)
            if solution.bound > best.bound:
                best = solution
            else:
                scale *= _SHRINK
        return best
