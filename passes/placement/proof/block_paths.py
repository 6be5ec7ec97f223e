"""Cheapest paths over cells, for many ranges of the time of a batch in one pass.

Every range has cells of its own, sorted by their first block; rows of one block, of all ranges, are taken together::

    block A    | range 0: cells ... | range 1: cells ... | ...      one gather, one sum, one least per range

so that what the interpreter costs per block is shared by all ranges. O(cells) per pass.

Left out: what cells cost (``block_cells.py``), and which ranges there are (``block_sweep.py``).
"""

from collections.abc import Sequence

import numpy as np

from heterps_compile.cost.problem import Floats, Ints

from .block_cells import Cells


class BlockPaths:
    """Paths from the first block to the last over the cells of R ranges."""

    def __init__(self, count: int, cells: Sequence[Cells]) -> None:
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
