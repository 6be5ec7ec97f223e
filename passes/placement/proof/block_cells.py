"""Positions of a chain in blocks: cells of segments, each with the least that any segment in it can cost.

Legend: blocks of g positions; a cell (A, C, type) holds the segments that begin in block A and end in block C. Each of
them has at least the work between the last position of A and the first of C, the *core*, and the least bytes that any
of them moves::

    position   . . . a . . . . | . . . . . . . . | . . c . . .
    block            A         |                 |     C
                           ^------- core --------^
                     ^~~~~ around it, Delta ~~~~~~~~~~~^

A path enters a block at one position and leaves it at the same one; blocks forget which, so a chain of cells would skip
up to a block of layers per stage. Phi makes up for it: the price of all layers before a position, each on its cheapest
type. The cost of a segment less what Phi grows along it adds up to a path's cost less the constant Phi(n), and for a
segment with core cost K and core computation at price F (both as ``SegmentPrices`` bounds them) it is at least::

    max(F, K - Delta) - Phi(core)        Delta = what Phi grows around the core

because computation at a price of F + delta holds at least delta more of Phi, and no cost is below it.

Cheapest paths over cells (:class:`BlockPaths`) are found for many ranges of the time of a batch in one pass. Every
range has cells of its own, sorted by their first block; rows of one block, of all ranges, are taken together::

    block A    | range 0: cells ... | range 1: cells ... | ...      one gather, one sum, one least per range

so that what the interpreter costs per block is shared by all ranges. O(cells) per pass.

Left out: which cells matter (``block_sweep.py``), memory of a replica, values that skip many layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.problem import Floats, Ints
from heterps_compile.cost.replicas import ReplicaDemand
from heterps_compile.passes.placement.geometry import Chain, Runs
from heterps_compile.passes.placement.traffic import SegmentTraffic

from .paths import ROUNDING, SegmentPrices

_SKIPS = (1, 4, 16, 64)  # values that skip more layers count for no cell


@dataclass(frozen=True, slots=True, eq=False)
class CellDemand:
    """What bounds the costs of cells, whatever the time of a batch.

    Attributes:
        type: [M].
        demand: [M], of the core with the least traffic.
        inside, around: [M], growth of Phi along the core and around it.
    """

    type: Ints
    demand: ReplicaDemand
    inside: Floats
    around: Floats

    def reduced_costs(self, prices: SegmentPrices) -> tuple[Floats, Floats]:
        """Return [M] twice, what a segment in the cell costs at least, less what Phi grows along it; never negative.

        First over the range of the prices, then at its slow end alone. Fees play no part.
        """
        demand, slow_s = self.demand, prices.slow_s * (1 + ROUNDING)
        units, least = demand.units_and_bound(slow_s)
        with np.errstate(divide="ignore", invalid="ignore"):  # where no time is left, and the cost infinite
            computing = demand.shared_compute_s * (prices.slow_s / (slow_s - demand.fixed_compute_s))
        np.maximum(computing, demand.fixed_compute_s + demand.shared_compute_s, out=computing)
        price = prices.problem.price_per_hour[self.type]
        computing *= price
        impossible = units > prices.problem.max_units[self.type]
        units[impossible] = 0.0
        both = []
        for fast_s in (prices.fast_s, prices.slow_s):
            cost = units * fast_s
            np.maximum(cost, least, out=cost)
            cost *= price
            cost -= self.around
            np.maximum(cost, computing, out=cost)
            cost -= self.inside
            np.maximum(cost, 0.0, out=cost)
            cost[impossible] = np.inf
            both.append(cost)
        return both[0], both[1]


class Blocks:
    """The blocks of one size.

    Attributes:
        size: g, positions of a block.
        count: Number of blocks; the last holds the end of the chain.
        total: Phi at the end of the chain.
    """

    def __init__(self, chain: Chain, size: int, traffic: SegmentTraffic | None = None) -> None:
        """Take the traffic of all segments where it is at hand; else what passes positions bounds it."""
        problem, positions = chain.problem, chain.length + 1
        self.size, self.count = size, (positions + size - 1) // size
        self._problem, self._length = problem, chain.length
        low = np.arange(self.count) * size
        high = np.minimum(low + size, positions) - 1
        phi = chain.cheapest_work(problem.price_per_hour)
        self.total = float(phi[-1])
        self._phi_low, self._phi_high, self._spread = phi[low], phi[high], phi[high] - phi[low]
        # every value that skips few layers passes the border of a block, or none is sure to
        self._received, self._sent = (
            [np.minimum.reduceat(chain.passing_bytes(span)[side], low) for span in _SKIPS] for side in (0, 1)
        )
        self._far = [
            span
            for span in range(1, len(_SKIPS))
            if traffic is None and any(np.any(side[span] > side[span - 1]) for side in (self._received, self._sent))
        ]
        self._traffic = None if traffic is None else traffic.least(low)
        every = np.arange(problem.type_count)[:, None]
        after, before = (chain.work_between(np.zeros_like(p)[None, :], p[None, :], every) for p in (low, high))
        after, before = (replace(sums, shared_s=None) for sums in (after, before))
        if traffic is None:
            sent_s, received_s = (self._passing_s(side[0]) for side in (self._sent, self._received))
            after = after.with_traffic(problem, (slice(None), None), sent_s)
            before = before.with_traffic(problem, (slice(None), None), -received_s)
        self._after, self._before = after.map(np.ravel), before.map(np.ravel)
        blocked = [chain.blocked_before(p).ravel() for p in (low, high)]
        self._blocked = blocked if np.any(blocked[0]) or np.any(blocked[1]) else None

    def _passing_s(self, size_bytes: Floats) -> Floats:
        """Return [T, N], the time that bytes at the borders of blocks take on every type."""
        problem = self._problem
        return size_bytes * problem.seconds_per_byte[:, None] + (size_bytes > 0) * problem.latency_s[:, None]

    def all_cells(self) -> Runs:
        """Return every cell."""
        first, end = np.triu_indices(self.count)
        types = self._problem.type_count
        every = Runs(np.repeat(first, types), np.repeat(end, types), np.tile(np.arange(types), len(first)))
        return every if self.size > 1 else every.keep(every.first < every.end)

    def parts(self, cells: Runs, finer: "Blocks") -> Runs:
        """Return the cells of smaller blocks that cells consist of."""
        ratio = self.size // finer.size
        opens = np.flatnonzero(np.diff(cells.first, prepend=-1))
        counts = np.diff(opens, append=len(cells))
        row_start, row_count = np.repeat(opens, counts), np.repeat(counts, counts)
        at = ratio * (ratio - 1) * row_start + ratio * np.arange(len(cells))  # sorted by first block, then as before
        places = np.empty((ratio, ratio, len(cells)), np.int64)
        parts = [np.empty(ratio * ratio * len(cells), np.int64) for _ in range(3)]
        for i in range(ratio):
            for j in range(ratio):
                np.add(at, i * ratio * row_count + j, out=places[i, j])
        parts[0][places] = (cells.first * ratio + np.arange(ratio)[:, None])[:, None]
        parts[1][places] = cells.end * ratio + np.arange(ratio)[:, None]
        parts[2][places] = cells.type
        finer_cells = Runs(*parts)
        kept = finer_cells.end < finer.count
        kept &= (finer_cells.first <= finer_cells.end) if finer.size > 1 else (finer_cells.first < finer_cells.end)
        return finer_cells.keep(kept)

    def steps(self, path: Runs) -> Runs:
        """Return a path of segments that lie in the cells of a path: all begin where their blocks do."""
        end = path.end * self.size
        end[-1] = self._length
        return Runs(path.first * self.size, end, path.type)

    def demand(self, cells: Runs) -> tuple[Runs, CellDemand]:
        """Return the cells whose type may run their core, and what bounds their costs."""
        problem = self._problem
        row, column = cells.type * self.count + cells.first, cells.type * self.count + cells.end
        inner = cells.first == cells.end
        if self._blocked is not None:
            possible = (self._blocked[0][column] == self._blocked[1][row]) | inner
            cells, row, column, inner = cells.keep(possible), row[possible], column[possible], inner[possible]
        first, end, type_ = cells.first, cells.end, cells.type
        sums = self._after.map(lambda after, before: after[column] - before[row], self._before)
        if self._traffic is not None or self._far:
            sums = sums.with_traffic(problem, type_, self._traffic_s(cells))
        inside, around = self._phi_low[end] - self._phi_high[first], self._spread[first] + self._spread[end]
        nothing_between = np.flatnonzero(inner)
        inside[nothing_between] = 0.0
        around[nothing_between] /= 2

        def between(table: Floats) -> Floats:
            table[nothing_between] = 0.0
            return table

        work = sums.map(between).of_parts().work(problem, type_)
        return cells, CellDemand(type_, work.demand(), inside, around)

    def _traffic_s(self, cells: Runs) -> Floats:
        """Return [M], what segments in cells move at least, beyond what passes the borders of their blocks."""
        problem, first, end, type_ = self._problem, cells.first, cells.end, cells.type
        traffic_s = np.zeros(len(cells))
        if self._traffic is not None:
            pair = first * self.count + end
            traffic_s += self._traffic.moved_bytes.ravel()[pair] * problem.seconds_per_byte[type_]
            traffic_s += self._traffic.talks.ravel()[pair] * problem.latency_s[type_]
        for far in self._far:
            at = np.flatnonzero((end - first - 1) * self.size + 1 >= _SKIPS[far])
            for side, block in ((self._received, first[at]), (self._sent, end[at])):
                more, less = side[far][block], side[far - 1][block]
                seconds = (more - less) * problem.seconds_per_byte[type_[at]]
                traffic_s[at] += seconds + ((more > 0) & (less <= 0)) * problem.latency_s[type_[at]]
        return traffic_s


class BlockPaths:
    """Paths from the first block to the last over the cells of R ranges."""

    def __init__(self, count: int, cells: Sequence[Runs]) -> None:
        """Take the number N of blocks, and for every range its cells, sorted by their first blocks."""
        self._count, self._cells, ranges = count, cells, len(cells)
        first, end = cells[0].first, cells[0].end
        self._order: Ints | None = None
        if ranges > 1:
            first, end = (np.concatenate([getattr(c, name) for c in cells]) for name in ("first", "end"))
            range_ = np.repeat(np.arange(ranges), [len(c) for c in cells])
            self._order = np.argsort(first.astype(np.uint16 if count < 1 << 16 else np.int64), kind="stable")
            first, end, range_ = first[self._order], end[self._order], range_[self._order]
            first, end = first * ranges + range_, end * ranges + range_
        self._source, self._target = first, end
        self._rows = np.searchsorted(first, np.arange(count + 1) * ranges).tolist()
        self._opens = np.flatnonzero(np.diff(first, prepend=-1))  # one for every block and range

    def to_go(self, costs: Sequence[Floats]) -> Floats:
        """Return [N, R], the cost of the cheapest path from a block to the last; no cost may be negative."""
        ranges, cost = len(self._cells), self._joined(costs)
        to_go = np.full(self._count * ranges, np.inf)
        to_go[-ranges:] = 0.0
        sources, groups = self._source[self._opens], np.searchsorted(self._opens, self._rows).tolist()
        for block in range(self._count - 2, -1, -1):
            start, stop = self._rows[block], self._rows[block + 1]
            if start < stop:
                group = slice(groups[block], groups[block + 1])
                rest = cost[start:stop] + to_go[self._target[start:stop]]
                to_go[sources[group]] = np.minimum.reduceat(rest, self._opens[group] - start)
        return to_go.reshape(self._count, ranges)

    def through(self, costs: Sequence[Floats], to_go: Floats) -> list[Floats]:
        """Return for every cell of every range the cost of the cheapest path through it."""
        ranges, cost = len(self._cells), self._joined(costs)
        come = np.full(self._count * ranges, np.inf)
        come[:ranges] = 0.0
        for block in range(self._count - 1):
            row = slice(self._rows[block], self._rows[block + 1])
            if row.start < row.stop:
                np.minimum.at(come, self._target[row], cost[row] + come[self._source[row]])
        reached = come.reshape(self._count, ranges)
        return [reached[cells.first, r] + costs[r] + to_go[cells.end, r] for r, cells in enumerate(self._cells)]

    def path(self, index: int, costs: Floats, to_go: Floats) -> Ints:
        """Return the cells of the cheapest path of a range, as indices of its cells; there must be one."""
        cells = self._cells[index]
        steps, block = [], 0
        while block < self._count - 1:
            row = slice(*np.searchsorted(cells.first, [block, block + 1]))
            rest = costs[row] + np.where(cells.end[row] > block, to_go[cells.end[row], index], np.inf)
            steps.append(row.start + int(np.argmin(rest)))
            block = int(cells.end[steps[-1]])
        return np.array(steps)

    def _joined(self, costs: Sequence[Floats]) -> Floats:
        return costs[0] if self._order is None else np.concatenate(costs)[self._order]
