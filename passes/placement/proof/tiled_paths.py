"""Cheapest paths over all segments of a long chain, which are made tile by tile and forgotten; most are never made.

Positions come in chunks. Rows are the first positions of one chunk, columns the ends of the others. Everything that
raises a segment's cost (computation, data, bytes received) grows with its end, but bytes sent, whose least over a chunk
stands for all of it; so one cell bounds a whole chunk of columns from below::

    rows of chunk j  |  near: chunks j, j + 1  |  far: chunks j + 2, j + 3, ...
                     |  made                   |  made only where  bound + least to_go of the chunk < to_go of a row

Left out: lists of segments (``paths.py``).
"""

from collections.abc import Iterator

import numpy as np

from heterps_compile.cost.problem import Bools, Floats, Ints
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import PER_TYPE, Chain, Segments, Tile
from heterps_compile.passes.placement.lattice import Lattice
from heterps_compile.passes.placement.traffic import Traffic

from .linked_chain import LinkedChain
from .paths import ListedSegments, SegmentGraph, SegmentPrices, StageCounts

_CHUNK = 32
_COLUMNS_AT_ONCE = 256


class TiledSegments:
    """All segments of a chain with their prices."""

    def __init__(self, chain: Chain, prices: SegmentPrices, deadline: Deadline, chunk: int = _CHUNK) -> None:
        self._chunk = chunk
        self._chain, self._prices, self._deadline = chain, prices, deadline
        self._furthest = chain.furthest_ends(prices.slow_s)

    def to_go(self, counts: StageCounts) -> Floats:
        """Return [n + 1, Q + 1], the cost of the cheapest path to the end."""
        length = self._chain.length
        to_go = np.full((length + 1, counts.last + 1), np.inf)
        to_go[-1] = counts.finish()
        least = np.full(length // self._chunk + 1, np.inf)  # of to_go, per chunk
        least[-1] = to_go[-1].min()
        for low in range((length - 1) // self._chunk * self._chunk, -1, -self._chunk):
            rows, near, traffic = self._rows(low)
            cheapest = self._cost(self._chain.tile(traffic, near)).min(axis=0)
            far = np.full((len(rows), counts.last + 1), np.inf)  # best over far columns, by the state after the stage
            _fill(to_go, counts, rows, cheapest, far)
            bound = self._chunk_bounds(rows, traffic) + least[low // self._chunk + 2 :][: self._far_count(rows)]
            unmade = np.ones(bound.shape[1], np.bool_)
            promising = np.zeros(bound.shape[1], np.bool_)
            if len(unmade):
                promising[np.argmin(bound, axis=1)] = True
            while np.any(promising):
                unmade &= ~promising
                for ends in self._far_ends(low, promising, traffic):
                    cost = self._cost(self._chain.tile(traffic, ends)).min(axis=0)
                    np.minimum(far, (cost[:, :, None] + to_go[ends]).min(axis=1), out=far)
                _fill(to_go, counts, rows, cheapest, far)
                promising = unmade & np.any(bound < to_go[rows].max(axis=1)[:, None], axis=0)
            least[low // self._chunk] = to_go[
                low : low + self._chunk
            ].min()  # with the end of the chain, where that is near
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
        least = np.minimum.reduceat(to_go.min(axis=1), np.arange(0, length + 1, self._chunk))
        # a path through a position costs at least the cheapest of all, so what begins there may cost this much
        with np.errstate(invalid="ignore"):  # where no path leads on and no limit is known: no bound is below that nan
            spare = np.where(np.isfinite(to_go), to_go, -np.inf).max(axis=1) + limit - float(to_go[0, 0])
        kept: list[Segments] = []
        count = 0
        for low in range(0, length, self._chunk):
            rows, near, traffic = self._rows(low)
            tile = self._chain.tile(traffic, near)
            cost = self._cost(tile)
            cheapest = cost.min(axis=0)
            after = np.full((len(rows), counts.last + 1), np.inf)
            for row, first in enumerate(rows):
                after[row] = counts.after_stage(from_start[first])
                behind = slice(first + 1, near[-1] + 1)
                np.minimum(from_start[behind], cheapest[row, row:, None] + after[row], out=from_start[behind])
            here = [self._keep(tile, cost, after, to_go, limit)]
            bound = self._chunk_bounds(rows, traffic) + least[low // self._chunk + 2 :][: self._far_count(rows)]
            for ends in self._far_ends(low, np.any(bound < spare[rows, None], axis=0), traffic):
                tile = self._chain.tile(traffic, ends)
                cost = self._cost(tile)
                reached = (cost.min(axis=0)[:, :, None] + after[:, None]).min(axis=0)
                from_start[ends] = np.minimum(from_start[ends], reached)
                here.append(self._keep(tile, cost, after, to_go, limit))
            kept.append(_sorted(Segments.join(here)))
            count += len(kept[-1])
            if count > most:
                return None
        return Segments.join(kept)

    def _rows(self, low: int) -> tuple[Ints, Ints, Traffic]:
        """Return the first positions of a chunk, their near ends, and the traffic as far as any segment reaches."""
        self._deadline.check()
        length = self._chain.length
        rows = np.arange(low, min(low + self._chunk, length))
        near = np.arange(low + 1, min(low + 2 * self._chunk, length + 1))
        furthest = max(int(near[-1]), int(self._furthest[rows].max()))
        return rows, near, self._chain.traffic(low, int(rows[-1]) + 1, furthest)

    def _far_count(self, rows: Ints) -> int:
        return max(0, int(self._furthest[rows].max()) // self._chunk - int(rows[0]) // self._chunk - 1)

    def _far_ends(self, low: int, chosen: Bools, traffic: Traffic) -> Iterator[Ints]:
        """Yield the ends of the chosen far chunks, some at a time, ascending."""
        chunks = low // self._chunk + 2 + np.flatnonzero(chosen)
        ends = (chunks[:, None] * self._chunk + np.arange(self._chunk)).ravel()
        ends = ends[ends <= low + traffic.sent_bytes.shape[1]]
        for start in range(0, len(ends), _COLUMNS_AT_ONCE):
            self._deadline.check()
            yield ends[start : start + _COLUMNS_AT_ONCE]

    def _chunk_bounds(self, rows: Ints, traffic: Traffic) -> Floats:
        """Return [R, K], what a segment that ends in a far chunk costs at least on any type."""
        count = self._far_count(rows)
        starts = (rows[0] // self._chunk + 2 + np.arange(count)) * self._chunk
        if count == 0:
            return np.zeros((len(rows), 0))
        columns = starts - traffic.first - 1
        sent = np.minimum.reduceat(traffic.sent_bytes, columns, axis=1)
        sends = np.minimum.reduceat(traffic.sends, columns, axis=1)
        moved = traffic.received_bytes[:, columns] + sent
        talks = traffic.receives[:, columns].astype(np.float64) + sends
        cost = self._prices.of(self._chain.demand(rows, starts, moved, talks), PER_TYPE)
        return np.asarray(np.where(self._chain.usable(rows, starts), cost, np.inf).min(axis=0))

    def _cost(self, tile: Tile) -> Floats:
        return np.where(tile.possible, self._prices.of(tile.demand, PER_TYPE), np.inf)

    @staticmethod
    def _keep(tile: Tile, cost: Floats, after: Floats, to_go: Floats, limit: float) -> Segments:
        rest = (after[:, None] + to_go[tile.ends]).min(axis=2)
        return tile.segments(cost + rest < limit)


def _fill(to_go: Floats, counts: StageCounts, rows: Ints, cheapest: Floats, far: Floats) -> None:
    """Set the rows of ``to_go`` from their near costs [R, W] and from what their far columns give."""
    for row in reversed(range(len(rows))):
        rest = to_go[rows[row] + 1 : rows[0] + 1 + cheapest.shape[1]]
        nearby = (cheapest[row, row:, None] + rest).min(axis=0)
        to_go[rows[row]] = counts.before_stage(np.minimum(nearby, far[row]))


def _sorted(segments: Segments) -> Segments:
    return segments.keep(np.lexsort((segments.type, segments.end, segments.first)))


def segment_graph(
    chain: Chain | LinkedChain | Lattice, prices: SegmentPrices, deadline: Deadline, segments: Segments | None = None
) -> SegmentGraph:
    """Return some segments of a chain with their prices, as a list; without a list all of them, in tiles if need be."""
    if segments is None and isinstance(chain, Chain):
        return TiledSegments(chain, prices, deadline)
    listed = chain.all_segments(deadline) if segments is None else segments
    return ListedSegments(listed, prices, chain.length, deadline)
