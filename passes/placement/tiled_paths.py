"""Cheapest paths over all segments of a chain, which are made tile by tile and forgotten; most are never made.

A row of the table is a first position a, a column an end c. A segment that computes C costs at least ``work(C)``, which
needs no tile, and by the time a row is reached everything is known of the columns::

    a     near columns: made              far columns: made only where  work(C(a, c)) + least to_go there < to_go[a]
    |==================================|- - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - -|

The far columns are tested by chunks. A stage that is long wastes so much on what replicas do not divide that few
chunks are left.

Left out: lists of segments (``paths.py``).
"""

import numpy as np

from heterps_compile.cost.problem import Floats, Ints

from .chain import Chain, Segments, Tile
from .paths import Deadline, SegmentPrices, StageCounts

_CHUNK = 32
_NEAR = 32


class TiledSegments:
    """All segments of a chain with their prices."""

    def __init__(self, chain: Chain, prices: SegmentPrices, deadline: Deadline) -> None:
        self._chain, self._prices, self._deadline = chain, prices, deadline
        self._reach = chain.reach(prices.slow_s)

    def to_go(self, counts: StageCounts) -> Floats:
        """Give [n + 1, Q + 1], the cost of the cheapest path to the end."""
        chain = self._chain
        to_go = np.full((chain.length + 1, counts.last + 1), np.inf)
        to_go[-1] = counts.finish()
        least = _Chunks(to_go)
        high, near = chain.length, _NEAR
        while high > 0:
            self._deadline.check()
            low = max(0, high - chain.rows_at(near))
            last = int(self._reach[low:high].max())
            made = min(last, high + near)
            cheapest = self._cheapest(low, high, low + 1, made)
            self._fill(to_go, counts, low, cheapest)
            while made < last:
                furthest = min(last, self._furthest(low, high, made + 1, to_go[low:high].max(axis=1), least))
                if furthest <= made:
                    break
                far = self._cheapest(low, high, made + 1, furthest)
                cheapest, made = np.concatenate([cheapest, far], axis=1), furthest
                self._fill(to_go, counts, low, cheapest)
            self._reach[low:high] = made
            least.update(to_go, low, high)
            near, high = max(_NEAR, made - high), low
        return to_go

    def row(self, first: int) -> tuple[Segments, Floats]:
        """Give the segments that begin at a position, and their costs; after :meth:`to_go`, those it has made."""
        tile = self._chain.tile(first, first + 1, first + 1, int(self._reach[first]))
        segments = tile.segments(tile.possible)
        return segments, self._prices.of(segments.demand, segments.type)

    def keep_below(self, counts: StageCounts, to_go: Floats, limit: float) -> Segments:
        """Give the segments that lie on some path cheaper than the limit."""
        chain = self._chain
        from_start = np.full((chain.length + 1, counts.last + 1), np.inf)
        from_start[0] = counts.start()
        kept = []
        for tile in chain.tiles(self._reach_below(to_go, limit - float(to_go[0, 0]))):
            self._deadline.check()
            cost = self._cost(tile)
            cheapest = cost.min(axis=0)
            rest = np.full(cheapest.shape, np.inf)
            for row in range(len(cheapest)):
                after = counts.after_stage(from_start[tile.first + row])
                ends = slice(tile.first + row + 1, tile.end + cheapest.shape[1])
                np.minimum(from_start[ends], cheapest[row, row:, None] + after, out=from_start[ends])
                rest[row, row:] = (after + to_go[ends]).min(axis=1)
            kept.append(tile.segments(cost + rest < limit))
        return Segments.join(kept)

    def _cheapest(self, low: int, high: int, nearest: int, furthest: int) -> Floats:
        """Give [R, W], the cost of a tile's segments on their cheapest type."""
        return np.asarray(self._cost(self._chain.tile(low, high, nearest, furthest)).min(axis=0))

    def _cost(self, tile: Tile) -> Floats:
        cost = self._prices.of(tile.demand, (slice(None), None, None))
        return np.where(tile.possible, cost, np.inf)

    @staticmethod
    def _fill(to_go: Floats, counts: StageCounts, low: int, cheapest: Floats) -> None:
        """Set rows low .. of ``to_go`` from the costs of a tile that begins right after its first row."""
        rows, columns = cheapest.shape
        for row in reversed(range(rows)):
            rest = to_go[low + row + 1 : low + 1 + columns]
            to_go[low + row] = counts.before_stage((cheapest[row, row:, None] + rest).min(axis=0))

    def _furthest(self, low: int, high: int, nearest: int, limit: Floats, least: "_Chunks") -> int:
        """Give the last end from ``nearest`` on at which a segment of some row may matter to its limit; 0 for none."""
        chunks = np.arange(nearest // _CHUNK, len(least.values))
        bound = self._least_cost(np.arange(low, high), chunks * _CHUNK) + least.values[chunks]
        matters = np.flatnonzero(np.any(bound < limit[:, None], axis=(0, 1)))
        return 0 if len(matters) == 0 else int(chunks[matters[-1]] + 1) * _CHUNK - 1

    def _reach_below(self, to_go: Floats, slack: float) -> Ints:
        """Give [n], the furthest ends of segments that a path may have whose cost exceeds the cheapest by the slack."""
        least = _Chunks(to_go)
        least.update(to_go, 0, len(to_go))
        finite = np.where(np.isfinite(to_go), to_go, -np.inf).max(axis=1)
        reach = self._reach.copy()
        step = max(1, (1 << 18) // (len(least.values) * self._chain.problem.type_count))
        for low in range(0, len(reach), step):
            rows = np.arange(low, min(low + step, len(reach)))
            chunks = np.arange(low // _CHUNK, len(least.values))
            bound = self._least_cost(rows, chunks * _CHUNK).min(axis=0) + least.values[chunks]
            matters = bound < (finite[rows] + slack)[:, None]
            last = chunks[-1] - np.argmax(matters[:, ::-1], axis=1)
            reach[rows] = np.where(matters.any(axis=1), (last + 1) * _CHUNK - 1, rows + 1)
        return np.clip(reach, np.arange(len(reach)) + 1, self._chain.reach(self._prices.slow_s))

    def _least_cost(self, rows: Ints, ends: Ints) -> Floats:
        """Give [T, R, W], what segments to these ends or beyond cost at least, by their computation alone."""
        chain, slow_s = self._chain, self._prices.slow_s
        per_type = (slice(None), None, None)
        compute_s = np.maximum(chain.compute_s[:, None, ends] - chain.compute_s[:, rows, None], 0.0)
        parallel = chain.problem.compute_parallel[per_type]
        left_s = np.maximum(slow_s - (1 - parallel) * compute_s, 1e-300)
        replicated = np.maximum(1.0, parallel * slow_s / left_s)
        unit_seconds = np.where(compute_s <= slow_s, compute_s, compute_s * replicated)
        cost = unit_seconds * self._prices.price[per_type]
        cost += np.maximum(1.0, unit_seconds / slow_s) * self._prices.fee[per_type]
        return np.where(chain.unusable[:, None, ends] > chain.unusable[:, rows, None] + 0.5, np.inf, cost)


class _Chunks:
    """The least of ``to_go`` over every state and every chunk of positions, as far as it is known."""

    def __init__(self, to_go: Floats) -> None:
        self.values = np.full(-(-len(to_go) // _CHUNK), np.inf)
        self.update(to_go, len(to_go) - 1, len(to_go))

    def update(self, to_go: Floats, low: int, high: int) -> None:
        """Take the rows low .. high - 1 in, and what is known after them."""
        for chunk in range(low // _CHUNK, (high - 1) // _CHUNK + 1):
            known = to_go[max(low, chunk * _CHUNK) : (chunk + 1) * _CHUNK]
            self.values[chunk] = known.min()
