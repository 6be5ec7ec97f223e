"""All the stages a chain of layers can be cut into: the segments between two positions, on every type.

A plan is a path from position 0 to the last over segments; a segment knows its work, whatever the rest of the plan is.
Layers that no stage may part are one *block*, so positions are the borders of n blocks::

    position   0     1     2           n
    block      |  0  |  1  |   ...     |        segment (a, c) = blocks a .. c - 1
                  e ------> reader              value e enters (a, c) where  producer < a <= reader < c,
                                                leaves it where              a <= producer < c <= last reader

Left out: what segments cost at a throughput, and paths over them (``paths.py``, ``tiled_paths.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.memory import MEMORY_TOLERANCE
from heterps_compile.cost.problem import Bools, Floats, Ints, Placement, Problem
from heterps_compile.cost.replicas import LayerSums, ReplicaDemand, StageWork
from heterps_compile.cost.segments import problem_tables
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline

from .traffic import Crossings, SegmentTraffic, Traffic, Values, box_sums

PER_TYPE = (slice(None), None, None)
"""Turns an array [T] into one that goes with [T, R, W]."""

_CELLS_AT_ONCE = 1 << 16
_ROWS_AT_ONCE = 32


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """M runs of neighbours, each on one type: of a path, in order, or any, sorted by (first, end, type).

    Attributes:
        first, end: [M], positions, or blocks of them.
        type: [M].
    """

    first: Ints
    end: Ints
    type: Ints

    def keep(self, index: Ints | Bools | slice) -> "Runs":
        """Return some of them, in the same order."""
        return Runs(self.first[index], self.end[index], self.type[index])

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True, slots=True, eq=False)
class Segments(Runs):
    """M segments, sorted by (first, end, type), with the demand [M] of each."""

    demand: ReplicaDemand

    def keep(self, index: Ints | Bools | slice) -> "Segments":
        """Return some of the segments, in the same order."""
        return Segments(self.first[index], self.end[index], self.type[index], self.demand.take(index))

    @staticmethod
    def join(parts: Sequence["Segments"]) -> "Segments":
        """Put lists one after the other; they must be in order."""
        first, end, type_ = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("first", "end", "type")
        )
        return Segments(first, end, type_, ReplicaDemand.join([part.demand for part in parts]))


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """The segments between R neighbouring first positions and W ends, on every type.

    Attributes:
        first: Position of row 0; row r is position first + r.
        ends: [W], ascending.
        demand: [T, R, W].
        possible: [T, R, W], whether it is a segment at all, runs on the type and fits its memory.
    """

    first: int
    ends: Ints
    demand: ReplicaDemand
    possible: Bools

    def segments(self, chosen: Bools) -> Segments:
        """Return the chosen segments [T, R, W] as a sorted list."""
        row, column, type_ = np.nonzero(chosen.transpose(1, 2, 0))
        return Segments(self.first + row, self.ends[column], type_, self.demand.take((type_, row, column)))


class Chain:
    """The segments of a problem, made tile by tile; memory stays O(types * positions) however long the chain.

    Attributes:
        problem: Where they come from.
        borders: [n + 1], the layer at every position.
        compute_s: [T, n + 1], sums over the layers before each position.
        is_exact: Whether the demands of segments are those of stages; lower bounds where pairs of types have links.
        memory_binds: Whether the memory of some type is too small for some segment.
    """

    def __init__(self, problem: Problem, borders: Ints | None = None) -> None:
        """Take the positions where stages may begin, or only some of them, 0 and the number of layers included."""
        tables = problem_tables(problem)
        layers = problem.layer_count
        inner = np.flatnonzero(~problem.uncuttable[1:layers]) + 1
        self.problem = problem
        self.is_exact = problem.link_seconds_per_byte is None
        self.borders = np.concatenate([[0], inner, [layers]]) if borders is None else borders
        self._block = block = np.repeat(np.arange(len(self.borders) - 1), np.diff(self.borders))
        self._sums = tables.layers.map(self.prefix_sums)
        self.compute_s = self._sums.compute_s
        self._unusable = self.prefix_sums(~tables.usable)
        self._crossings = Crossings(
            Values(block[tables.read_after], block[tables.read_by], tables.read_bytes),
            Values(block[tables.sent_by], block[tables.sent_until], tables.sent_bytes),
        )
        self._weights = np.concatenate([[0.0], np.cumsum(problem.weight_bytes)])[self.borders]
        self._activations = self._block_activations()
        self._tied = (block[problem.tied_first], block[problem.tied_second], problem.tied_bytes)
        self.memory_binds = tables.memory_binds

    @property
    def length(self) -> int:
        """n, the number of blocks."""
        return len(self.borders) - 1

    @property
    def segment_count(self) -> int:
        """How many segments there are on all types, possible or not."""
        return self.length * (self.length + 1) // 2 * self.problem.type_count

    def placement(self, path: Runs) -> Placement:
        """Return the placement of a path."""
        starts, ends = self.borders[path.first], self.borders[path.end]
        same = path.type[1:] == path.type[:-1]
        per_layer = np.repeat(path.type, ends - starts)
        return Placement(tuple(per_layer.tolist()), tuple(starts[1:][same].tolist()))

    def value(self, placement: Placement) -> float:
        """Return the objective of a placement, inf where it is infeasible."""
        return evaluate_one(self.problem, placement)

    def cheapest_work(self, price: Floats) -> Floats:
        """Return [n + 1], for the blocks before each position the sum of their computation at the cheapest type."""
        usable = np.diff(self._unusable) == 0
        least = np.where(usable, np.diff(self.compute_s) * price[:, None], np.inf).min(axis=0)
        return np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(least), least, 0.0))])

    def work_between(self, low: Ints, high: Ints, types: Ints) -> LayerSums:
        """Return what the layers between positions add up to on some types."""
        return self._sums.map(lambda sums: np.asarray(sums[types, high] - sums[types, low]))

    def usable_blocks(self) -> Bools:
        """Return [T, n], whether a type may run a block."""
        return np.asarray(np.diff(self._unusable) == 0)

    def values_between(self) -> list[tuple[int, Ints, float]]:
        """Return every value that leaves its block: that block, the later blocks that read it in order, its bytes."""
        problem, values = self.problem, []
        for value in np.flatnonzero(problem.edge_bytes > 0).tolist():
            producer = int(self._block[problem.edge_producer[value]])
            readers = np.unique(
                self._block[problem.edge_readers[problem.edge_starts[value] : problem.edge_starts[value + 1]]]
            )
            readers = readers[readers > producer]
            if len(readers):
                values.append((producer, readers, float(problem.edge_bytes[value])))
        return values

    def blocked_before(self, positions: Ints) -> Floats:
        """Return [T, P], how many layers before each position a type may not run."""
        return self._unusable[:, positions]

    def passing_bytes(self, span: int) -> tuple[Floats, Floats]:
        """Return [n + 1] twice, the least bytes into and out of a segment of ``span`` blocks or more at a position."""
        return self._crossings.passing_bytes(span, self.length)

    @property
    def longest_span(self) -> int:
        """How many blocks further a value goes at most, to its next reader or, as it is sent, to its last."""
        return self._crossings.longest_span

    def whole_traffic(self) -> SegmentTraffic:
        """Return the traffic of every segment; O(positions^2) memory."""
        positions = self.length + 1
        moved, talks = np.full((positions, positions), np.inf), np.full((positions, positions), np.inf)
        for low in range(0, self.length, _ROWS_AT_ONCE):
            high = min(low + _ROWS_AT_ONCE, self.length)
            traffic, is_segment = self.traffic(low, high, self.length), np.tri(high - low, self.length - low, -1) == 0
            rows = slice(low, high), slice(low + 1, positions)
            moved[rows] = np.where(is_segment, traffic.received_bytes + traffic.sent_bytes, np.inf)
            talks[rows] = np.where(is_segment, traffic.receives.astype(np.float64) + traffic.sends, np.inf)
        return SegmentTraffic(moved, talks)

    def whole_memory(self) -> Floats:
        """Return [n + 1, n + 1], what one replica of every segment holds; anything where there is none."""
        held = np.zeros((self.length + 1, self.length + 1))
        for low in range(0, self.length, _ROWS_AT_ONCE):
            high = min(low + _ROWS_AT_ONCE, self.length)
            held[low:high, low + 1 :] = self._memory(low, high, self.length - low)
        return held

    def segments_at(self, first: Ints, end: Ints, types: Ints) -> Segments:
        """Return those of some segments that are possible, sorted."""
        order = np.lexsort((types, end, first))
        first, end, types = first[order], end[order], types[order]
        parts = []
        for low in range(0, self.length, _ROWS_AT_ONCE):
            high = min(low + _ROWS_AT_ONCE, self.length)
            here = slice(*np.searchsorted(first, [low, high]))
            if here.start < here.stop:
                ends = np.unique(end[here])
                tile = self.tile(self.traffic(low, high, int(ends[-1])), ends)
                cell = types[here], first[here] - low, np.searchsorted(ends, end[here])
                possible = tile.possible[cell]
                demand = tile.demand.take(tuple(index[possible] for index in cell))
                parts.append(Segments(first[here][possible], end[here][possible], types[here][possible], demand))
        if not parts:
            tile = self.tile(self.traffic(0, 1, 1), np.array([1]))
            return tile.segments(np.zeros_like(tile.possible))
        return Segments.join(parts)

    def memory_bytes(self, block: int) -> float:
        """Return what one replica of a stage of one block holds."""
        return float(self._memory(block, block + 1, 1)[0, 0])

    def traffic(self, low: int, high: int, furthest: int) -> Traffic:
        """Return the bytes in and out for segments that begin at low .. high - 1 and end no later than ``furthest``."""
        return self._crossings.traffic(low, high, furthest)

    def tile(self, traffic: Traffic, ends: Ints) -> Tile:
        """Return the segments with the first positions of the traffic and some of its ends."""
        low, columns = traffic.first, ends - traffic.first - 1
        rows = np.arange(low, low + len(traffic.sent_bytes))
        possible = self.usable(rows, ends) & (ends > rows[:, None])
        if self.memory_binds:
            held = self._memory(low, rows[-1] + 1, ends[-1] - low)[:, columns]
            possible &= held <= self.problem.memory_bytes[PER_TYPE] * (1 + MEMORY_TOLERANCE)
        moved = traffic.received_bytes[:, columns] + traffic.sent_bytes[:, columns]
        talks = traffic.receives[:, columns].astype(np.float64) + traffic.sends[:, columns]
        return Tile(low, ends, self.demand(rows, ends, moved, talks), possible)

    def demand(self, rows: Ints, ends: Ints, moved_bytes: Floats, talks: Floats) -> ReplicaDemand:
        """Return [T, R, W], the demand of segments, with their traffic [R, W] and how often they pay latency."""
        return self.work(rows, ends, moved_bytes, talks).demand()

    def work(self, rows: Ints, ends: Ints, moved_bytes: Floats, talks: Floats) -> StageWork:
        """Return [T, R, W], the work of segments; arguments as above."""
        problem = self.problem
        traffic_s = moved_bytes * problem.seconds_per_byte[PER_TYPE]
        traffic_s += talks * problem.latency_s[PER_TYPE]
        sums = self._sums.map(lambda sums: _between(sums, rows, ends)).with_traffic(problem, PER_TYPE, traffic_s)
        return sums.work(problem, PER_TYPE)

    def usable(self, rows: Ints, ends: Ints) -> Bools:
        """Return [T, R, W], whether a type may run all layers between a position and an end."""
        return np.asarray(_between(self._unusable, rows, ends) == 0)

    def all_segments(self, deadline: Deadline = NO_DEADLINE, cells_at_once: int = _CELLS_AT_ONCE) -> Segments:
        """List every possible segment.

        Raises:
            TimeUpError: where the deadline comes first.
        """
        parts = []
        rows = max(1, cells_at_once // (self.problem.type_count * self.length))
        for low in range(0, self.length, rows):
            deadline.check()
            high = min(low + rows, self.length)
            tile = self.tile(self.traffic(low, high, self.length), np.arange(low + 1, self.length + 1))
            parts.append(tile.segments(tile.possible))
        return Segments.join(parts)

    def prefix_sums(self, table: Floats | Bools) -> Floats:
        """Return [T, n + 1], sums of a table [L, T] over the layers before each position."""
        sums = np.zeros((table.shape[1], table.shape[0] + 1))
        np.cumsum(table.T, axis=1, out=sums[:, 1:])
        return sums[:, self.borders]

    def furthest_ends(self, slowest_s: float = np.inf) -> Ints:
        """Return [n], for every first position the last end at which some type may still take at most ``slowest_s``."""
        problem, furthest = self.problem, np.arange(self.length) + 1
        serial_s = self._sums.serial_compute_s
        if serial_s is None:
            serial_s = self.compute_s * (1 - problem.compute_parallel[:, None])
        for t in range(problem.type_count):
            usable = np.searchsorted(self._unusable[t], self._unusable[t, :-1] + 0.5) - 1
            if np.isfinite(slowest_s):
                # what no number of replicas divides; a little more, since costs cut exactly
                most_s = serial_s[t, :-1] + slowest_s * (1 + 1e-6)
                usable = np.minimum(usable, np.searchsorted(serial_s[t], most_s, side="right") - 1)
            furthest = np.maximum(furthest, usable)
        return furthest

    def _block_activations(self) -> Floats:
        gather = np.add.reduceat if self.problem.keeps_activations else np.maximum.reduceat
        return np.asarray(gather(self.problem.activation_bytes, self.borders[:-1]))

    def _memory(self, low: int, high: int, width: int) -> Floats:
        """Return [R, W], the memory of one replica; what is no segment holds anything."""
        rows, inside = np.arange(low, high), np.arange(low, low + width)
        activations = np.where(inside >= rows[:, None], self._activations[inside], 0.0)
        gather = np.add.accumulate if self.problem.keeps_activations else np.maximum.accumulate
        held = gather(activations, axis=1) + self._weights[inside + 1] - self._weights[rows, None]
        first, second, size = self._tied
        near = (first >= low) & (second < low + width)
        zero = np.zeros(np.count_nonzero(near), np.int64)
        rows_of_pair, columns_of_pair = (zero, first[near] - low + 1), (second[near] - low, zero + width)
        return np.asarray(held - box_sums(rows_of_pair, columns_of_pair, size[near], held.shape))


def _between(sums: Floats, rows: Ints, ends: Ints) -> Floats:
    """Return [T, R, W], sums over the blocks from a row's position to a column's end."""
    return np.asarray(sums[:, None, ends] - sums[:, rows, None])
