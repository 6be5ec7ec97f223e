"""A chain whose device types talk over links of their own: stages know the types of their neighbours.

What a stage pays for a value depends on the type at the other end. Segments are listed once for every pair of types
around them, between states instead of positions::

    position 0        a                        c             n
             |  ...   |      segment on t      |    ...      |
    state    0   (a: p before, t)  ----->  (c: t before, q)  last        p, t, q types

so the segments of a path agree on the types of neighbours. Where every value is read by the block after its producer,
that is all a stage pays for, and its demand is exact. Other ends, further away, count with the cheapest link to a type
that may run them: then demands are lower bounds. O(positions^2 types^3) segments.

Left out: chains for which that is too many; ``evaluate`` knows the types of all stages.
"""

import numpy as np

from heterps_compile.cost.problem import Floats, Ints, Placement, Problem
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline
from heterps_compile.passes.placement.geometry import Chain, Runs, Segments

_MADE_AT_ONCE = 100_000  # segments, between two looks at the clock


class LinkedChain:
    """The segments of a problem with links between pairs of types.

    Attributes:
        problem: Where they come from.
        length: The last state.
        is_exact: Whether the demands of segments are those of stages, not lower bounds.
    """

    def __init__(self, chain: Chain, alone: Segments | None = None) -> None:
        """Take a chain of positions, and those of its segments that may be used; all of them without a list.

        Nothing is listed before it is asked for.
        """
        self.problem: Problem = chain.problem
        self._chain, self._types = chain, chain.problem.type_count
        self.length = 1 + (chain.length - 1) * self._types**2
        self.is_exact = has_near_readers(chain)
        self._alone = alone
        self._segments: Segments | None = None

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self.all_segments())

    def placement(self, path: Runs) -> Placement:
        """Return the placement of a path."""
        first, end = self._positions(path.first), self._positions(path.end)
        return self._chain.placement(Runs(first, end, path.type))

    def value(self, placement: Placement) -> float:
        """Return the objective of a placement, inf where it is infeasible."""
        return self._chain.value(placement)

    def all_segments(self, deadline: Deadline = NO_DEADLINE) -> Segments:
        """List every possible segment; made once.

        Raises:
            TimeUpError: where the deadline comes first.
        """
        if self._segments is None:
            self._segments = self._made(deadline)
        return self._segments

    def _made(self, deadline: Deadline) -> Segments:
        if self._alone is None:
            self._alone = self._chain.all_segments(deadline)
        alone, types, last = self._alone, self._types, self._chain.length
        # a type is next to a segment only where some segment on it ends, or begins
        ends, begins = np.zeros((last + 1, types), np.bool_), np.zeros((last + 1, types), np.bool_)
        ends[alone.end, alone.type] = begins[alone.first, alone.type] = True
        ends[0, 0] = begins[last, 0] = True  # stands for none
        before, after = ends.sum(axis=1)[alone.first], begins.sum(axis=1)[alone.end]
        nth_before, nth_after = (np.argsort(~there, axis=1, kind="stable") for there in (ends, begins))
        links, parts = _Links(self._chain, deadline), list[Segments]()
        # states are ordered by position first, so that parts of whole positions are sorted one after the other
        copied = np.concatenate([[0], np.cumsum(before * after)])
        starts = np.searchsorted(alone.first, np.arange(last + 1))
        low = 0
        while low < last:
            deadline.check()
            room = copied[starts[low]] + _MADE_AT_ONCE
            high = max(low + 1, int(np.searchsorted(copied[starts], room, side="right")) - 1)
            of = np.repeat(np.arange(starts[low], starts[high]), np.diff(copied[starts[low] : starts[high] + 1]))
            rank = copied[starts[low]] + np.arange(len(of)) - copied[of]
            first, end, type_ = alone.first[of], alone.end[of], alone.type[of]
            p, q = nth_before[first, rank // after[of]], nth_after[end, rank % after[of]]
            parts.append(self._between(links, (first, end, type_), (p, q)))
            low = high
        return Segments.join(parts)

    def _between(self, links: "_Links", segment: tuple[Ints, Ints, Ints], neighbours: tuple[Ints, Ints]) -> Segments:
        """Return segments (first, end, type) between the types of their neighbours, sorted."""
        (first, end, type_), (p, q), types, last = segment, neighbours, self._types, self._chain.length
        sums = self._chain.work_between(first, end, type_)
        sums = sums.with_traffic(self.problem, type_, links.talking_s(first, end, type_, p, q))
        demand = sums.work(self.problem, type_).demand()
        state = np.where(first == 0, 0, 1 + (first - 1) * types**2 + p * types + type_)
        next_state = np.where(end == last, self.length, 1 + (end - 1) * types**2 + type_ * types + q)
        return Segments(state, next_state, type_, demand).keep(np.lexsort((type_, next_state, state)))

    def _positions(self, states: Ints) -> Ints:
        inside = (states - 1) // self._types**2 + 1
        return np.where(states == 0, 0, np.where(states == self.length, self._chain.length, inside))


class _Links:
    """What stages pay to talk; see :meth:`talking_s`."""

    def __init__(self, chain: Chain, deadline: Deadline) -> None:
        problem, types = chain.problem, chain.problem.type_count
        if problem.link_seconds_per_byte is None or problem.link_latency_s is None:
            raise ValueError("the problem has no links between pairs of types")
        tables = np.array([problem.link_seconds_per_byte, problem.link_latency_s])
        # [2, n, T, 1]: the least that a type pays to talk with whatever may run a block
        anyone = np.where(chain.usable_blocks().T[None, :, None, :], tables[:, None], np.inf).min(axis=3)[..., None]
        self._anyone = np.where(np.isfinite(anyone), anyone, 0.0)
        # where readers are near, what is received depends on the first position alone, and what is sent on the end
        self._near = has_near_readers(chain)
        firsts, ends = (1, chain.length + 1) if self._near else (chain.length + 1, chain.length + 1)
        shape = (2, firsts, ends, types, types)
        self._received, self._sent = np.zeros(shape), np.zeros(shape)
        for producer, readers, size_bytes in chain.values_between():
            deadline.check()
            self._receive(producer, readers, size_bytes, tables)
            self._send(producer, readers, size_bytes, tables)

    def talking_s(self, first: Ints, end: Ints, types: Ints, before: Ints, after: Ints) -> Floats:
        """Return [M], what segments pay with types before and after; any type where nothing is before or after."""
        received_at, sent_at = ((0, first), (0, end)) if self._near else ((first, end), (first, end))
        paid_s = np.zeros(len(first))
        for kind in range(2):
            paid_s += self._received[kind][*received_at, types, before] + self._sent[kind][*sent_at, types, after]
        return paid_s

    def _receive(self, producer: int, readers: Ints, size_bytes: float, tables: Floats) -> None:
        for first in range(producer + 1, int(readers[-1]) + 1):
            if self._near:
                at: tuple[int, int | slice] = (0, first)
            else:
                at = (first, slice(int(readers[np.searchsorted(readers, first)]) + 1, None))
            per_byte, latency_s = tables if first == producer + 1 else self._anyone[:, producer]
            self._received[0][at] += size_bytes * per_byte
            self._received[1][at] = np.maximum(self._received[1][at], latency_s)

    def _send(self, producer: int, readers: Ints, size_bytes: float, tables: Floats) -> None:
        for end in range(producer + 1, int(readers[-1]) + 1):
            away = readers[readers > end]
            slowest = self._anyone[:, away].max(axis=1) if len(away) else np.zeros((2, 1, 1))
            if end in readers:
                slowest = np.maximum(slowest, tables)
            at = (0 if self._near else slice(0, producer + 1), end)
            self._sent[0][at] += size_bytes * slowest[0]
            self._sent[1][at] = np.maximum(self._sent[1][at], slowest[1])


def linked_segment_count(chain: Chain) -> int:
    """Return how many segments there are between states, possible or not."""
    types, inner = chain.problem.type_count, chain.length - 1
    return types + 2 * inner * types**2 + inner * (inner - 1) // 2 * types**3


def has_near_readers(chain: Chain) -> bool:
    """Say whether every value is read in the blocks of its producer and the next one alone."""
    return all(readers[-1] == producer + 1 for producer, readers, _ in chain.values_between())
