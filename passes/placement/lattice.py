"""The stages that layers can be divided into in any order: segments between two down-sets, on every type.

A plan is a path from the empty down-set to all layers; the segment between two nested down-sets is a stage that holds
what the larger has and the smaller has not::

    {} ---> {a} ---> {a c} ---> {a b c d}         stages  a | c | b d    of the order a c b d
    {} ---> {b} ---> {a b} ---> {a b c d}         stages  b | a | c d    of the order b a c d

Positions are down-sets, the smaller ones first, so that a segment runs forward; then all that is known of paths over
segments (``proof/``) holds as it stands. What a segment costs is what :mod:`heterps_compile.cost.evaluate` charges its
stage for, where links of all types are alike; links of pairs of types count as the best link of each type, so that
segments cost no more than stages. O(down-sets^2 * (types + values)).

Left out: which down-sets there are (``passes/partial_orders.py``), which of them are worth a look (``orders/``).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.layer_orders import LayerOrders, reordered
from heterps_compile.cost.memory import MEMORY_TOLERANCE
from heterps_compile.cost.problem import Bools, Floats, Ints, Placement, Problem
from heterps_compile.cost.segments import problem_tables
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline
from heterps_compile.passes.partial_orders import unpack

from .geometry import Runs, Segments

_CELLS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class OrderedPlacement(Placement):
    """Where every layer goes, in an order of layers of its own.

    Attributes:
        order: [L], the layer of the problem at every position; () for the problem's own order.
    """

    order: tuple[int, ...] = ()


class Lattice:
    """The segments between down-sets of a family.

    Attributes:
        problem: Where they come from.
        orders: The orders of its layers.
        length: The last position: one less than there are down-sets.
        is_exact: Always: what links of pairs of types add is for ``value`` to know.
        pair_count: How many nested pairs of down-sets there are.
    """

    is_exact = True

    def __init__(
        self,
        problem: Problem,
        orders: LayerOrders,
        members: Sequence[Sequence[int]],
        family: Collection[int],
        deadline: Deadline = NO_DEADLINE,
    ) -> None:
        """Take a family of down-sets of atoms, the empty one and that of all of them included.

        Args:
            problem: In the order of ``orders``.
            orders: The orders of its layers.
            members: The layers of every atom.
            family: Down-sets, bit i standing for atom i.
            deadline: When to stop.

        Raises:
            TimeUpError: where the deadline comes first.
        """
        self.problem, self.orders = problem, orders
        masks = sorted(family, key=lambda mask: (mask.bit_count(), mask))
        self.length = len(masks) - 1
        self._holds = _table(masks, members, problem.layer_count)
        self._first, self._end = self._nested(deadline)
        self.pair_count = len(self._first)
        self._segments: Segments | None = None
        self._values: dict[Placement, float] = {}

    @property
    def segment_count(self) -> int:
        """How many segments there are on all types, possible or not."""
        return self.pair_count * self.problem.type_count

    def placement(self, path: Runs) -> OrderedPlacement:
        """Return the placement of a path; the layers of a stage stand as they do in the problem."""
        stages = [
            np.flatnonzero(self._holds[end] & ~self._holds[first]).tolist()
            for first, end in zip(path.first, path.end, strict=True)
        ]
        order = tuple(layer for stage in stages for layer in stage)
        types = tuple(int(t) for t, stage in zip(path.type, stages, strict=True) for _ in stage)
        numbers = [number for number, stage in enumerate(stages) for _ in stage]
        cuts = Placement.of_stages(types, numbers).cuts
        return OrderedPlacement(types, cuts, () if order == tuple(range(len(order))) else order)

    def value(self, placement: Placement) -> float:
        """Return the value of a placement, in whatever order it is; kept, as searches ask again."""
        if placement not in self._values:
            order = getattr(placement, "order", ())
            problem = reordered(self.problem, self.orders, order) if order else self.problem
            self._values[placement] = evaluate_one(problem, placement)
        return self._values[placement]

    def all_segments(self, deadline: Deadline = NO_DEADLINE) -> Segments:
        """List every possible segment; made once.

        Raises:
            TimeUpError: where the deadline comes first.
        """
        if self._segments is None:
            self._segments = self._made(deadline)
        return self._segments

    def _nested(self, deadline: Deadline) -> tuple[Ints, Ints]:
        """Return the pairs of down-sets of which the first lies within the second, sorted."""
        held = self._holds.astype(np.float32)
        lacks = (1 - held).T.copy()
        rows = max(1, _CELLS_AT_ONCE // len(held))
        firsts, ends = [], []
        for low in range(0, len(held), rows):
            deadline.check()
            first, end = np.nonzero(held[low : low + rows] @ lacks[:, low:] == 0)
            is_larger = end > first
            firsts.append(first[is_larger] + low)
            ends.append(end[is_larger] + low)
        return np.concatenate(firsts), np.concatenate(ends)

    def _made(self, deadline: Deadline) -> Segments:
        starts = np.searchsorted(self._first, np.arange(self.length + 2))
        traffic = _Traffic(self.problem, self._holds)
        rows = max(1, _CELLS_AT_ONCE // (self.length + 1))
        parts = []
        for low in range(0, self.length + 1, rows):
            deadline.check()
            high = min(low + rows, self.length + 1)
            pairs = slice(int(starts[low]), int(starts[high]))
            if pairs.start < pairs.stop:
                parts.append(self._between(self._first[pairs], self._end[pairs], traffic.between(low, high)))
        return Segments.join(parts)

    def _between(self, first: Ints, end: Ints, traffic: tuple[int, Floats, Floats]) -> Segments:
        """Return the possible segments of some pairs of down-sets."""
        problem, tables = self.problem, problem_tables(self.problem)
        low, moved_bytes, talks = traffic
        here = (first - low, end)

        def total(table: Floats | Bools) -> Floats:
            sums = self._holds @ table.astype(np.float64)
            return np.asarray(sums[end] - sums[first])

        possible = np.rint(total(~tables.usable)) == 0
        if tables.memory_binds:
            room = problem.memory_bytes * (1 + MEMORY_TOLERANCE)
            possible &= self._memory_bytes(first, end)[:, None] <= room
        pair, type_ = np.nonzero(possible)
        traffic_s = moved_bytes[here][:, None] * problem.seconds_per_byte
        traffic_s += talks[here][:, None] * problem.latency_s
        sums = tables.layers.map(lambda table: total(table)[possible])
        work = sums.with_traffic(problem, type_, traffic_s[possible]).work(problem, type_)
        return Segments(first[pair], end[pair], type_, work.demand())

    def _memory_bytes(self, first: Ints, end: Ints) -> Floats:
        """Return what one replica of each segment holds."""
        problem, holds = self.problem, self._holds
        weights = holds @ problem.weight_bytes
        held = weights[end] - weights[first]
        for layers, size in self.orders.ties:
            inside = holds[:, list(layers)].sum(axis=1)
            held -= size * np.maximum(inside[end] - inside[first] - 1, 0)
        if problem.keeps_activations:
            activations = holds @ problem.activation_bytes
            return np.asarray(held + activations[end] - activations[first])
        largest = np.zeros(len(first))
        for layer in np.argsort(problem.activation_bytes, kind="stable").tolist():  # the largest last
            largest[holds[end, layer] & ~holds[first, layer]] = problem.activation_bytes[layer]
        return np.asarray(held + largest)


class _Traffic:
    """Bytes in and out of segments.

    A value leaves the segment that makes it where not all readers are before its end, and enters one that some of its
    readers are in where it was made before.
    """

    def __init__(self, problem: Problem, holds: Bools) -> None:
        values = np.flatnonzero((problem.edge_bytes > 0) & (np.diff(problem.edge_starts) > 0))
        bounds = list(pairwise(problem.edge_starts.tolist()))
        readers = [problem.edge_readers[slice(*bounds[value])] for value in values.tolist()]
        self._bytes = problem.edge_bytes[values]
        self._made = holds[:, problem.edge_producer[values]].astype(np.float64)
        count = (
            np.stack([holds[:, own].sum(axis=1) for own in readers], axis=1) if readers else np.zeros((len(holds), 0))
        )
        size = np.array([len(own) for own in readers])
        self._open = self._made * (count < size)
        # one column for a value and how many of its readers are in the down-set
        self._value = np.repeat(np.arange(len(readers)), size + 1 if readers else 0)
        nth = np.arange(len(self._value)) - np.searchsorted(self._value, self._value)
        self._read = (count[:, self._value] == nth).astype(np.float64)

    def between(self, low: int, high: int) -> tuple[int, Floats, Floats]:
        """Return ``low``, and of segments from low .. high - 1 on the bytes, and how often they pay latency."""
        goes_out, comes_in = (np.rint(number) > 0 for number in self._weighed(low, high, np.ones_like(self._bytes)))
        sent, received = self._weighed(low, high, self._bytes)
        moved = np.where(goes_out, sent, 0.0) + np.where(comes_in, received, 0.0)
        return low, moved, goes_out.astype(np.float64) + comes_in

    def _weighed(self, low: int, high: int, weight: Floats) -> tuple[Floats, Floats]:
        """Return [R, N] twice, the sums of the weights of the values that leave segments, and that enter them."""
        made = self._made[low:high]
        same = made[:, self._value] * self._read[low:high]
        sent = (1 - made) * weight @ self._open.T
        return sent, (made @ weight)[:, None] - same * weight[self._value] @ self._read.T


def _table(masks: Sequence[int], members: Sequence[Sequence[int]], layers: int) -> Bools:
    """Return [N, L], whether a down-set holds a layer."""
    home = np.empty(layers, np.int64)
    for atom, own in enumerate(members):
        home[list(own)] = atom
    return unpack(masks, len(members))[:, home].astype(bool)
