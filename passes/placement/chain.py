"""All the stages a chain of layers can be cut into: the segments between two positions, on every type.

A plan is a path from position 0 to the last over segments; a segment knows its work, whatever the rest of the plan is.
Layers that no stage may part are one *block*, so positions are the borders of n blocks::

    position   0     1     2           n
    block      |  0  |  1  |   ...     |        segment (a, c) = blocks a .. c - 1
                  e ------> reader              value e enters (a, c) where  producer < a <= reader < c,
                                                leaves it where              a <= producer < c <= last reader

Left out: what segments cost at a throughput (``segment_costs.py``), and paths (``paths.py``).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Bools, Floats, Ints, Placement, Problem
from heterps_compile.cost.replicas import ReplicaDemand, StageWork
from heterps_compile.cost.segments import MEMORY_TOLERANCE, problem_tables

_CELLS_PER_TILE = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """M segments, sorted by (first, end, type).

    Attributes:
        first, end: [M], positions.
        type: [M].
        demand: [M].
    """

    first: Ints
    end: Ints
    type: Ints
    demand: ReplicaDemand

    def keep(self, index: Ints | Bools | slice) -> "Segments":
        """Give some of the segments, in the same order."""
        return Segments(self.first[index], self.end[index], self.type[index], self.demand.take(index))

    @staticmethod
    def join(parts: Sequence["Segments"]) -> "Segments":
        """Put lists one after the other; they must be in order."""
        first, end, type_ = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("first", "end", "type")
        )
        demand = (np.concatenate([getattr(part.demand, name) for part in parts]) for name in ReplicaDemand.__slots__)
        return Segments(first, end, type_, ReplicaDemand(*demand))

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """The segments that begin at R neighbouring positions, on every type, up to some end.

    Attributes:
        first: Position of row 0; row r is position first + r.
        end: End of column 0; column w is end + w.
        demand: [T, R, W].
        possible: [T, R, W], whether it is a segment at all, runs on the type and fits its memory.
    """

    first: int
    end: int
    demand: ReplicaDemand
    possible: Bools

    def segments(self, chosen: Bools) -> Segments:
        """Give the chosen segments [T, R, W] as a sorted list."""
        row, column, type_ = np.nonzero(chosen.transpose(1, 2, 0))
        return Segments(self.first + row, self.end + column, type_, self.demand.take((type_, row, column)))


class Chain:
    """The segments of a problem, made tile by tile; memory stays O(types * positions) however long the chain.

    Attributes:
        problem: Where they come from.
        borders: [n + 1], the layer at every position.
        compute_s: [T, n + 1], sums over the layers before each position.
        unusable: [T, n + 1], how many layers before each position the type may not run.
    """

    def __init__(self, problem: Problem, borders: Ints | None = None) -> None:
        """Take the positions where stages may begin, or only some of them, 0 and the number of layers included."""
        tables = problem_tables(problem)
        layers = problem.layer_count
        inner = np.flatnonzero(~problem.uncuttable[1:layers]) + 1
        self.problem = problem
        self.borders = np.concatenate([[0], inner, [layers]]) if borders is None else borders
        block = np.repeat(np.arange(len(self.borders) - 1), np.diff(self.borders))
        self.compute_s = self._prefix(tables.compute_s)
        self._data_s = self._prefix(tables.data_s)
        self._sync_s = self._prefix(problem.sync_s) if tables.synchronises else None
        self.unusable = self._prefix(~tables.usable)
        self._enter = _crossings(block[tables.read_after], block[tables.read_by], tables.read_bytes)
        self._leave = _crossings(block[tables.sent_by], block[tables.sent_until], tables.sent_bytes)
        self._weights = np.concatenate([[0.0], np.cumsum(problem.weight_bytes)])[self.borders]
        self._activations = self._block_activations()
        self._tied = (block[problem.tied_first], block[problem.tied_second], problem.tied_bytes)
        self._memory_binds = tables.memory_binds

    @property
    def length(self) -> int:
        """n, the number of blocks."""
        return len(self.borders) - 1

    @property
    def segment_count(self) -> int:
        """How many segments there are on all types, possible or not."""
        return self.length * (self.length + 1) // 2 * self.problem.type_count

    def placement(self, path: Segments) -> Placement:
        """Give the placement of a path."""
        starts, ends = self.borders[path.first], self.borders[path.end]
        same = path.type[1:] == path.type[:-1]
        per_layer = np.repeat(path.type, ends - starts)
        return Placement(tuple(per_layer.tolist()), tuple(starts[1:][same].tolist()))

    def cheapest_work(self, price: Floats) -> Floats:
        """Give [n + 1], for the blocks before each position the sum of their computation at the cheapest type."""
        usable = np.diff(self.unusable) == 0
        least = np.where(usable, np.diff(self.compute_s) * price[:, None], np.inf).min(axis=0)
        return np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(least), least, 0.0))])

    def memory_bytes(self, block: int) -> float:
        """Give what one replica of a stage of one block holds."""
        return float(self._memory(block, block + 1, 1)[0, 0])

    def tiles(self, reach: Ints) -> Iterator[Tile]:
        """Give the segments up to an end [n] for every first position, in tiles of rising first position.

        A tile may hold some longer segments as well.
        """
        low = 0
        while low < self.length:
            high = min(low + self.rows_at(int(reach[low] - low)), self.length)
            yield self.tile(low, high, low + 1, int(reach[low:high].max()))
            low = high

    def rows_at(self, width: int) -> int:
        """Give the most rows, each one column wider than the one after it, that make a tile of the usual size."""
        cells = _CELLS_PER_TILE // self.problem.type_count
        return max(1, (math.isqrt((width - 1) ** 2 + 4 * cells) - (width - 1)) // 2)

    def tile(self, low: int, high: int, nearest: int, furthest: int) -> Tile:
        """Give the segments that begin at positions low .. high - 1 and end at nearest .. furthest."""
        width = furthest - low
        rows, ends = np.arange(low, high), np.arange(nearest, furthest + 1)
        problem = self.problem
        received, enters = self._received(low, high, width)
        sent, leaves = self._sent(low, high, width)
        per_type = (slice(None), None, None)
        near = nearest - low - 1
        data_s = (received + sent)[:, near:] * problem.seconds_per_byte[per_type]
        data_s += (enters.astype(np.float64) + leaves)[:, near:] * problem.latency_s[per_type]
        data_s += _between(self._data_s, rows, ends)
        work = StageWork(
            compute_s=_between(self.compute_s, rows, ends),
            data_s=data_s,
            sync_s=np.zeros(1) if self._sync_s is None else _between(self._sync_s, rows, ends),
            compute_parallel=problem.compute_parallel[per_type],
            data_parallel=problem.data_parallel[per_type],
        )
        possible = _between(self.unusable, rows, ends) == 0
        possible &= ends > rows[:, None]
        if self._memory_binds:
            held = self._memory(low, high, width)[:, near:]
            possible &= held <= problem.memory_bytes[per_type] * (1 + MEMORY_TOLERANCE)
        return Tile(low, nearest, work.demand(), possible)

    def _prefix(self, table: Floats | Bools) -> Floats:
        """Give [T, n + 1], sums of a table [L, T] over the blocks before each position."""
        sums = np.zeros((table.shape[1], table.shape[0] + 1))
        np.cumsum(table.T, axis=1, out=sums[:, 1:])
        return sums[:, self.borders]

    def reach(self, slowest_s: float = np.inf) -> Ints:
        """Give [n], for every first position the last end at which some type may still take at most ``slowest_s``."""
        problem, positions = self.problem, np.arange(self.length)
        reach = positions + 1
        for t in range(problem.type_count):
            usable = np.searchsorted(self.unusable[t], self.unusable[t, :-1] + 0.5) - 1
            serial = 1 - problem.compute_parallel[t]
            if serial > 0 and np.isfinite(slowest_s):
                # what no number of replicas divides; a little more, since costs cut exactly
                most_s = self.compute_s[t, :-1] + slowest_s * (1 + 1e-6) / serial
                usable = np.minimum(usable, np.searchsorted(self.compute_s[t], most_s, side="right") - 1)
            reach = np.maximum(reach, usable)
        return reach

    def _block_activations(self) -> Floats:
        gather = np.add.reduceat if self.problem.keeps_activations else np.maximum.reduceat
        return np.asarray(gather(self.problem.activation_bytes, self.borders[:-1]))

    def _memory(self, low: int, high: int, width: int) -> Floats:
        """Give [R, W], the memory of one replica; what is no segment holds anything."""
        rows, inside = np.arange(low, high), np.arange(low, low + width)
        activations = np.where(inside >= rows[:, None], self._activations[inside], 0.0)
        gather = np.add.accumulate if self.problem.keeps_activations else np.maximum.accumulate
        held = gather(activations, axis=1) + self._weights[inside + 1] - self._weights[rows, None]
        first, second, size = self._tied
        near = (first >= low) & (second < low + width)
        zero = np.zeros(np.count_nonzero(near), np.int64)
        saved, _ = _box_sums((zero, first[near] - low + 1), (second[near] - low, zero + width), size[near], held.shape)
        return np.asarray(held - saved)

    def _received(self, low: int, high: int, width: int) -> tuple[Floats, Bools]:
        """Give [R, W], bytes of the values with source < a <= target < c, and whether there are any."""
        source, target, size = self._enter
        near = (source < high - 1) & (target >= low) & (target < low + width)
        source, target = source[near] - low, target[near] - low
        return _box_sums(
            (np.maximum(source + 1, 0), target + 1), (target, target * 0 + width), size[near], (high - low, width)
        )

    def _sent(self, low: int, high: int, width: int) -> tuple[Floats, Bools]:
        """Give [R, W], bytes of the values with a <= source < c <= target, and whether there are any."""
        source, target, size = self._leave
        near = (source >= low) & (source < low + width)
        source, target = source[near] - low, target[near] - low
        return _box_sums((source * 0, source + 1), (source, target), size[near], (high - low, width))


def _crossings(source: Ints, target: Ints, size_bytes: Floats) -> tuple[Ints, Ints, Floats]:
    """Give the values that pass between two blocks."""
    crosses = (source < target) & (size_bytes > 0)
    return source[crosses], target[crosses], size_bytes[crosses]


def _between(sums: Floats, rows: Ints, ends: Ints) -> Floats:
    """Give [T, R, W], sums over the blocks from a row's position to a column's end."""
    return np.asarray(sums[:, None, ends] - sums[:, rows, None])


def _box_sums(
    rows: tuple[Ints, Ints], columns: tuple[Ints, Ints], amounts: Floats, shape: tuple[int, int]
) -> tuple[Floats, Bools]:
    """Add every amount over its box of rows [r0, r1) and columns [c0, c1); also tell where any box lies.

    The sums are made of differences, which leave rounding where nothing lies: it is cleared.
    """
    height, width = shape
    flat = np.concatenate([np.minimum(r, height) * (width + 1) + np.minimum(c, width) for r in rows for c in columns])
    signs = np.repeat([1.0, -1.0, -1.0, 1.0], len(amounts))
    cells = (height + 1) * (width + 1)
    sums, counts = (
        np.bincount(flat, signs * weights, cells).reshape(height + 1, width + 1)[:-1, :-1].cumsum(0).cumsum(1)
        for weights in (np.tile(amounts, 4), 1.0)
    )
    lies = counts > 0.5
    return np.where(lies, sums, 0.0), lies
