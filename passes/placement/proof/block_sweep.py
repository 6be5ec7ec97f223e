"""The exact search on a long chain of values that skip layers: close most of the range of tau with cells of segments.

tau is the time of a batch in the slowest stage. Ranges of tau get narrower and the blocks finer, both only where plans
better than the best known one may be::

    64 positions a block   |   |   |   |   |   |   |   |      bound >= best: closed
    16                     | | |   |   | | |                  else the cells on cheap paths, in smaller blocks
     4                     |||     |     |                    and in half the range
     1                     '       '                          few segments: left to the search over segments

Many ranges share a pass (``block_cells.py``). Limits that couple stages, numbers of stages and memory play no part:
without them the bound is lower, and stays a bound.

Left out: the search over segments, which closes what is left (``range_search.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from heterps_compile.cost.problem import Floats, Placement
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain, Runs, Segments

from .block_cells import BlockPaths, Blocks, CellDemand
from .effort import SweepEffort
from .paths import SegmentPrices


@dataclass(frozen=True, slots=True, eq=False)
class SweptRange:
    """A range (fast_s, slow_s] of tau whose plans cost at least ``bound``.

    Attributes:
        cells: That may be on the path of a better plan, in blocks of level ``level``; None for all.
        least: What a plan through each of the cells costs at least.
    """

    bound: float
    slow_s: float
    fast_s: float
    level: int
    cells: Runs | None
    least: Floats | None = None

    def below(self, ceiling: float) -> Runs | None:
        """Return the cells without those that only dearer plans use."""
        if self.cells is None or self.least is None:
            return self.cells
        kept = self.least < ceiling
        return self.cells if np.all(kept) else self.cells.keep(np.flatnonzero(kept))


class RangeSweep:
    """The sweep, which can be stopped between steps.

    Attributes:
        open: Ranges that are not closed.
        left: Ranges that are left to the search over segments.
    """

    def __init__(self, chain: Chain, slow_s: float, bound: float, deadline: Deadline, effort: SweepEffort) -> None:
        """Begin with all tau up to ``slow_s``, whose plans cost at least ``bound``.

        Args:
            chain: The segments.
            slow_s: The longest time of a batch.
            bound: What every plan costs at least.
            deadline: When to stop.
            effort: How finely to look.
        """
        self._chain, self._deadline, self._effort = chain, deadline, effort
        # where segments bound what stages cost and do not tell it, narrower ranges are as hard to close
        self._narrow = effort.narrow if chain.is_exact else effort.narrow_of_bounds
        sizes = [size for size in effort.sizes if size == 1 or chain.length // size >= effort.top_blocks // 4]
        has_skips = chain.longest_span > 1 and chain.length <= effort.most_squared
        traffic = chain.whole_traffic() if has_skips else None
        self._levels = [Blocks(chain, size, traffic) for size in sizes]
        ends = [*(slow_s * effort.first_ratio**i for i in range(effort.first_ranges)), 0.0]
        self.open = [SweptRange(bound, *pair, 0, None) for pair in pairwise(ends)]
        self.left: list[SweptRange] = []
        self._ceiling = np.inf
        self._last: tuple[Runs | None, tuple[int, float], tuple[Runs, CellDemand]] | None = None
        self._all = self._levels[0].demand(self._levels[0].all_cells())

    def step(self, ceiling: float, consider: Callable[[Placement], None]) -> None:
        """Take some ranges, bound them, and put back the parts of them that may hold better plans.

        Args:
            ceiling: What costs that much is closed.
            consider: Told of plans that may be good.
        """
        self._deadline.check()
        if ceiling < self._ceiling:  # a better plan came up
            self._ceiling = ceiling
            self.open = [range_ for range_ in self.open if range_.bound < ceiling]
            if not self.open:
                return
        level, chosen = self._choose()
        blocks = self._levels[level]
        made = [self._bounded(range_, level) for range_ in chosen]
        cells = [own for own, _ in made]
        paths = BlockPaths(blocks.count, cells)
        both = [self._costs(demand, range_) for (_, demand), range_ in zip(made, chosen, strict=True)]
        costs, slow_costs = [range_costs for range_costs, _ in both], [at_slow for _, at_slow in both]
        to_go = paths.to_go(costs)
        bounds = to_go[0] + blocks.total
        still = np.flatnonzero(bounds < ceiling)
        parts: list[SweptRange] = []
        if len(still):
            through = paths.through(costs, to_go)
            at_slow = paths.to_go(slow_costs)[0] + blocks.total
            for r in still.tolist():
                least = through[r] + blocks.total
                kept = np.flatnonzero(least < ceiling)
                own = replace(
                    chosen[r],
                    bound=max(bounds[r], chosen[r].bound),
                    level=level,
                    cells=cells[r].keep(kept),
                    least=least[kept],
                )
                parts += self._parts(own, float(bounds[r]), float(at_slow[r]), ceiling)
        taken = {id(range_) for range_ in chosen}
        self.open = [range_ for range_ in self.open if id(range_) not in taken]
        for part in parts:
            (self.left if self._is_done(part) else self.open).append(part)
        tried = self._effort.tried if blocks.count > 1 else 0
        for r in still[np.argsort(bounds[still])][:tried].tolist():
            consider(self._chain.placement(blocks.steps(cells[r].keep(paths.path(r, costs[r], to_go)))))

    def _parts(self, range_: SweptRange, bound: float, at_slow: float, ceiling: float) -> list[SweptRange]:
        """Return the parts of a range that was bounded, and may hold a better plan.

        No plan at any tau is cheaper per hour than the cheapest at the slow end; so much of the range is closed. The
        rest is parted where that, and not smaller blocks, is what a higher bound needs.
        """
        slow_s, fast_s = range_.slow_s * min(1.0, ceiling / at_slow), range_.fast_s
        if slow_s <= fast_s:
            return []
        whole = replace(range_, slow_s=slow_s)
        if self._may_refine(range_) and at_slow - bound < self._effort.width * (ceiling - bound):
            return [whole]
        ends = [slow_s, slow_s * self._effort.first_ratio, 0.0]
        if fast_s > 0:
            ends = [slow_s, *np.geomspace(slow_s, fast_s, self._effort.parts + 1)[1:-1].tolist(), fast_s]
        return [replace(whole, slow_s=slower, fast_s=faster) for slower, faster in pairwise(ends)]

    def segments(self, range_: SweptRange) -> Segments | None:
        """Return the segments of a range that is left; None where there are too many."""
        if range_.cells is None or self._levels[range_.level].size > 1:
            return None
        return self._chain.segments_at(range_.cells.first, range_.cells.end, range_.cells.type)

    def _choose(self) -> tuple[int, list[SweptRange]]:
        """Return ranges to be bounded on one level, those with the lowest bounds first, as many as one pass takes."""
        held = sum(len(range_.cells) for range_ in self.open if range_.cells is not None)
        is_full = held > self._effort.most_held
        self.open.sort(key=lambda range_: (-range_.level if is_full else 0, self._rank(range_)))
        level, room = self._next_level(self.open[0]), self._effort.cells_at_once
        chosen: list[SweptRange] = []
        for range_ in self.open:
            if self._next_level(range_) == level:
                room -= self._load(range_)
                if room < 0 and chosen:
                    break
                chosen.append(range_)
        return level, chosen

    def _rank(self, range_: SweptRange) -> float:
        """Return what is lowest for the range to take next: narrow ones lead to better plans, which close others."""
        return range_.bound + self._effort.deeper * self._ceiling * float(np.log2(1 - range_.fast_s / range_.slow_s))

    def _next_level(self, range_: SweptRange) -> int:
        if range_.cells is None:
            return 0
        return range_.level + self._may_refine(range_)

    def _may_refine(self, range_: SweptRange) -> bool:
        if range_.cells is None or range_.level + 1 == len(self._levels):
            return False
        return len(range_.cells) * self._ratio(range_.level) ** 2 <= self._effort.most_cells

    def _ratio(self, level: int) -> int:
        return self._levels[level].size // self._levels[level + 1].size

    def _load(self, range_: SweptRange) -> int:
        """Return how many cells it takes to bound a range."""
        if range_.cells is None:
            return len(self._all[0])
        return len(range_.cells) * (self._ratio(range_.level) ** 2 if self._next_level(range_) > range_.level else 1)

    def _bounded(self, range_: SweptRange, level: int) -> tuple[Runs, CellDemand]:
        cells = range_.below(self._ceiling)
        if cells is None:
            return self._all
        key = level, self._ceiling
        if self._last is None or self._last[0] is not range_.cells or self._last[1] != key:  # parts of one range
            if level > range_.level:
                cells = self._levels[range_.level].parts(cells, self._levels[level])
            self._last = range_.cells, key, self._levels[level].demand(cells)
        return self._last[2]

    def _costs(self, demand: CellDemand, range_: SweptRange) -> tuple[Floats, Floats]:
        no_multipliers = np.zeros(self._chain.problem.type_count)
        return demand.reduced_costs(SegmentPrices(self._chain.problem, range_.slow_s, range_.fast_s, no_multipliers))

    def _is_done(self, range_: SweptRange) -> bool:
        """Say whether the search over segments does better with a range."""
        if self._may_refine(range_) or range_.cells is None:
            return False
        return len(range_.cells) <= self._effort.few or range_.fast_s > range_.slow_s * self._narrow
