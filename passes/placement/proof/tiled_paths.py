"""Cheapest paths over all segments of a long chain, which are made tile by tile and forgotten.

A tile has the segments that begin at some neighbouring positions, up to the furthest end that any replicas allow::

    begin   0 .. 31  |  tile  --------------------->|
    begin  32 .. 63            |  tile  ---------------------->|
    begin  64 .. 95                      |  tile  --------------------->|

Memory stays O(types * positions).

Not covered: lists of segments (``paths.py``).
"""

import numpy as np

from heterps_compile.cost.problem import Floats
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import PER_TYPE, Chain, Segments, Tile
from heterps_compile.passes.placement.lattice import Lattice

from .linked_chain import LinkedChain
from .paths import ListedSegments, SegmentGraph, SegmentPrices, StageCounts

_ROWS = 32


class TiledSegments:
    """All segments of a chain with their prices."""

    def __init__(self, chain: Chain, prices: SegmentPrices, deadline: Deadline, rows: int = _ROWS) -> None:
        self._rows = rows
        self._chain, self._prices, self._deadline = chain, prices, deadline
        self._furthest = chain.furthest_ends(prices.slow_s)

    def to_go(self, counts: StageCounts) -> Floats:
        """Return [n + 1, Q + 1], the cost of the cheapest path to the end."""
        length = self._chain.length
        to_go = np.full((length + 1, counts.last + 1), np.inf)
        to_go[-1] = counts.finish()
        for low in reversed(range(0, length, self._rows)):
            tile, cost = self._tile(low)
            cheapest = cost.min(axis=0)
            for row in reversed(range(len(cheapest))):
                rest = to_go[low + row + 1 : tile.ends[-1] + 1]
                to_go[low + row] = counts.before_stage((cheapest[row, row:, None] + rest).min(axis=0))
        return to_go

    def row(self, first: int) -> tuple[Segments, Floats]:
        """Return the segments that begin at a position, and their costs."""
        last = int(self._furthest[first])
        tile = self._chain.tile(self._chain.traffic(first, first + 1, last), np.arange(first + 1, last + 1))
        segments = tile.segments(tile.possible)
        return segments, self._prices.of(segments.demand, segments.type)

    def keep_below(self, counts: StageCounts, to_go: Floats, limit: float, most: int) -> Segments | None:
        """Return the segments that lie on some path cheaper than the limit; None where they are more than ``most``."""
        length = self._chain.length
        from_start = np.full((length + 1, counts.last + 1), np.inf)
        from_start[0] = counts.start()
        kept, count = list[Segments](), 0
        for low in range(0, length, self._rows):
            tile, cost = self._tile(low)
            cheapest = cost.min(axis=0)
            after = np.full((len(cheapest), counts.last + 1), np.inf)
            for row in range(len(cheapest)):
                after[row] = counts.after_stage(from_start[low + row])
                behind = slice(low + row + 1, tile.ends[-1] + 1)
                np.minimum(from_start[behind], cheapest[row, row:, None] + after[row], out=from_start[behind])
            rest = (after[:, None] + to_go[tile.ends]).min(axis=2)
            kept.append(tile.segments(cost + rest < limit))
            count += len(kept[-1])
            if count > most:
                return None
        return Segments.join(kept)

    def _tile(self, low: int) -> tuple[Tile, Floats]:
        """Return the segments that begin at some positions, and their costs [T, R, W]."""
        self._deadline.check()
        high = min(low + self._rows, self._chain.length)
        last = max(high, int(self._furthest[low:high].max()))
        tile = self._chain.tile(self._chain.traffic(low, high, last), np.arange(low + 1, last + 1))
        return tile, np.where(tile.possible, self._prices.of(tile.demand, PER_TYPE), np.inf)


def segment_graph(
    chain: Chain | LinkedChain | Lattice, prices: SegmentPrices, deadline: Deadline, segments: Segments | None = None
) -> SegmentGraph:
    """Return some segments of a chain with their prices, as a list; without a list all of them, in tiles if need be."""
    if segments is None and isinstance(chain, Chain):
        return TiledSegments(chain, prices, deadline)
    listed = chain.all_segments(deadline) if segments is None else segments
    return ListedSegments(listed, prices, chain.length, deadline)
