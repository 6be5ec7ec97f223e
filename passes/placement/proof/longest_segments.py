"""How far stages reach: for every first position, type and number of replicas the last end within the time of a batch.

Of all segments that begin at a position on one type, with one number of replicas, only the longest matter where a path
to the end costs the less the later it begins; so O(positions * types * replicas) of them stand for all::

    position   a             c1        c2     c3
    1 replica  |-------------|
    2          |-----------------------|             what replicas cannot divide lets each next one add less
    3          |------------------------------|

Legend: a segment (a, c) on a type with k replicas takes at most tau where, with sums over the layers before a position,

    compute(c) - compute(a) <= tau / (1 - alpha + alpha / k)
    until(c) - since(a) <= tau
        until = w (data + sent) + v sync    since = w (data - received) + v sync
        w = 1 - beta + beta / k             v = (k - 1) / k, or what machines make of it (``cost/all_reduce.py``)

or, where layers have fractions of their own, with sums of what no replicas divide and of what they do,

    serial(c) - serial(a) + (parallel(c) - parallel(a)) / k <= tau

and likewise for data movement; with the bytes that every segment with that end sends, or receives, at least. An *entry*
is a type with a number of replicas, or with several: priced as the least of them, dividing as the most and
synchronising as the least, which is more than any of them can. Where synchronising takes longer than it saves, more
replicas reach less far; an entry then reaches as far as one of its type with fewer. The least price of units from a
position to the end of the chain,

    to_go(n) = 0        to_go(a) = min over entries e of price(e) + min over c in a + 1 .. end(e, a) of to_go(c)

is a bound for any values between layers, and exact where entries are of one number of replicas and a value passes to
the next layer alone: an end c within a window may send too many bytes, but then the furthest one, behind it, fits,
sends less and hence receives less as the beginning of what follows; from there the way is no dearer than from c.

A path takes hundreds of thousands of segments one by one, each a few comparisons that depend on the one
before; array operations take several times as long. The loops at the end of this file are compiled
(``compiled_loops.py``). Legend of the loops: T types, E entries, n positions.

Limits on units couple the stages of a plan, and a programme takes only the maximal segments: those that no longer one
with as few units contains. They may overlap, since a part of a segment needs no more units than all of it.

Not covered: memory of a replica, values that skip layers, ranges of times of a batch (``interval_bound.py``).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.chosen_units import BUDGET_TOLERANCE
from heterps_compile.cost.problem import Bools, Floats, Ints, Problem
from heterps_compile.cost.segments import crossing_bytes
from heterps_compile.passes.placement.compiled_loops import compiled
from heterps_compile.passes.placement.geometry import Chain, Runs
from heterps_compile.sync_rules.network import ring_share

_SLACK = 2e-10  # relative, in favour of reaching further: more than rounding is, less than two plans need to differ by
_EQUAL = 1e-12  # relative; what the order of summation may change

LastEnds = NDArray[np.int32]
"""Positions [E, n], of which there are many."""


class Sums(NamedTuple):
    """What decides where a stage must end, [T, n + 1] each.

    Attributes:
        compute_s: Computation before a position.
        until_s, since_s: Data movement before a position, with what a segment that ends there sends, and less what one
            that begins there receives.
        sync_s: What ever more replicas synchronise.
        shared_s: What no replica divides, nor has to itself.
        serial_compute_s, serial_until_s, serial_since_s: The parts of the first three that no replicas divide; [0, 0]
            where layers have the fractions of their types.
        usable: [T, n], the last end that the layers allow.
    """

    compute_s: Floats
    until_s: Floats
    since_s: Floats
    sync_s: Floats
    shared_s: Floats
    serial_compute_s: Floats
    serial_until_s: Floats
    serial_since_s: Floats
    usable: Ints


class Shares(NamedTuple):
    """What entries take of the sums, [E] each.

    Attributes:
        types: Device types.
        compute, data: Shares of computation and data movement that one of the replicas takes.
        parallel: Share that one of the replicas takes of what they divide.
        synchronise: Share of the synchronisation that they take.
    """

    types: Ints
    compute: Floats
    data: Floats
    parallel: Floats
    synchronise: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaRanges:
    """Types with ``least`` to ``most`` replicas, [E] each, in this order."""

    type: Ints
    least: Ints
    most: Ints

    @classmethod
    def every(cls, most: Ints) -> "ReplicaRanges":
        """Return every number of replicas up to that of each type, [T]."""
        units = counted_up(most) + 1
        return cls(np.repeat(np.arange(len(most)), most), units, units)

    def take(self, index: Ints) -> "ReplicaRanges":
        """Return some of them."""
        return ReplicaRanges(self.type[index], self.least[index], self.most[index])

    def singles(self, are_exact: Bools) -> "ReplicaRanges":
        """Make every number of replicas of some entries, [E], one of its own."""
        parts = np.where(are_exact, self.most - self.least + 1, 1)
        whole, part = self.take(np.repeat(np.arange(len(self)), parts)), counted_up(parts)
        is_part = np.repeat(parts > 1, parts)
        return ReplicaRanges(whole.type, whole.least + part, np.where(is_part, whole.least + part, whole.most))

    def __len__(self) -> int:
        return len(self.type)


class LongestSegments:
    """The reach of stages on the chain of a problem, and the cheapest paths."""

    def __init__(self, chain: Chain) -> None:
        """Sum up the layers before each position."""
        problem, positions = chain.problem, np.arange(chain.length + 1)
        every = np.arange(problem.type_count)[:, None]
        sums = chain.work_between(0 * positions[None], positions[None], every)
        received_s, sent_s = (
            size_bytes * problem.seconds_per_byte[:, None] + (size_bytes > 0) * problem.latency_s[:, None]
            for size_bytes in chain.passing_bytes(1)
        )
        until, since = (sums.with_traffic(problem, (slice(None), None), each) for each in (sent_s, -received_s))
        none = np.zeros_like(sums.compute_s)
        serial = (np.zeros((0, 0)),) * 3
        if sums.serial_compute_s is not None or sums.serial_data_s is not None:
            works = [each.work(problem, (slice(None), None)) for each in (until, since)]
            serial = (works[0].serial_compute_s, works[0].serial_data_s, works[1].serial_data_s)
        self._synchronises = sums.sync_s is not None
        self._sums = Sums(
            compute_s=sums.compute_s,
            until_s=until.data_s,
            since_s=since.data_s,
            sync_s=none if sums.sync_s is None else np.ascontiguousarray(sums.sync_s),
            shared_s=none if sums.shared_s is None else np.ascontiguousarray(sums.shared_s),
            serial_compute_s=np.ascontiguousarray(serial[0]),
            serial_until_s=np.ascontiguousarray(serial[1]),
            serial_since_s=np.ascontiguousarray(serial[2]),
            usable=np.stack([np.searchsorted(row, row[:-1] + 0.5) - 1 for row in chain.blocked_before(positions)]),
        )
        self._problem = problem

    def ends(self, entries: ReplicaRanges, batch_s: float) -> LastEnds:
        """Return [E, n], the last end of a segment with so many replicas from every position.

        The position itself where there is none. An entry reaches no less far than those of its type before it.

        Args:
            entries: By type, then by number of replicas.
            batch_s: Time of a batch.
        """
        ends = np.empty((len(entries), self._sums.usable.shape[1]), np.int32)
        compiled(furthest)(self._sums, self._shares(entries), batch_s * (1 + _SLACK), ends)
        return _no_less_than_fewer(entries, ends) if self._synchronises else ends

    def to_go(self, ends: LastEnds, prices: Floats) -> Floats:
        """Return [n + 1], the least cost of the units from a position to the end of the chain; prices are [E]."""
        return compiled(to_go)(ends, prices)

    def from_start(self, ends: LastEnds, prices: Floats) -> Floats:
        """Return [n + 1], the least cost of the units up to a position; prices are [E]."""
        return compiled(from_start)(ends, prices)

    def path(self, ends: LastEnds, prices: Floats, to_go: Floats) -> tuple[Ints, Ints, Ints]:
        """Return where the steps of the cheapest path begin and end, and their entries; there must be one."""
        chosen, stops = compiled(cheapest)(ends, prices, to_go, _EQUAL)
        return np.append(0, stops[:-1]), stops, chosen

    def _shares(self, entries: ReplicaRanges) -> Shares:
        alpha, beta = self._problem.compute_parallel[entries.type], self._problem.data_parallel[entries.type]
        least, machines = entries.least.astype(np.float64), self._problem.machines
        synchronise = np.asarray(ring_share(least) if machines is None else machines.take(entries.type).share(least))
        parallel = 1 / entries.most
        return Shares(entries.type, 1 - alpha + alpha * parallel, 1 - beta + beta * parallel, parallel, synchronise)


class LongestPaths:
    """Cheapest paths at single times of a batch, over the longest segments of every number of replicas.

    Attributes:
        entries: Every number of replicas of every type.
    """

    def __init__(self, chain: Chain) -> None:
        """Take a chain; see :meth:`of`."""
        self.entries, self._reach = ReplicaRanges.every(_most_replicas(chain.problem)), LongestSegments(chain)
        self._chain, self._crossing = chain, crossing_bytes(chain.problem)[chain.borders]
        self._time_s, self._ends = np.nan, np.zeros((0, 0), np.int32)

    @classmethod
    def of(cls, chain: Chain, most_cells: int) -> "LongestPaths | None":
        """Return the paths of a chain on which they are exact, and few: numbers of replicas times positions."""
        problem = chain.problem
        is_free = problem.min_stages <= 1 and problem.max_stages >= chain.length and not chain.memory_binds
        is_plain = chain.is_exact and chain.longest_span <= 1 and problem.rules is None
        is_few = 0 < int(_most_replicas(problem).sum()) * chain.length <= most_cells
        return cls(chain) if is_free and is_plain and is_few else None

    def ends(self, time_s: float) -> LastEnds:
        """Return [E, n], the last ends at a time of a batch; those of the last time are kept."""
        if time_s != self._time_s:
            self._time_s, self._ends = time_s, self._reach.ends(self.entries, time_s)
        return self._ends

    def to_go(self, time_s: float, unit_price: Floats) -> Floats:
        """Return [n + 1], what the units from a position to the end of the chain cost; prices are [T]."""
        return compiled(to_go)(self.ends(time_s), self._prices(unit_price))

    def path(self, time_s: float, unit_price: Floats, to_go: Floats) -> tuple[Runs, Floats]:
        """Return the cheapest path, and the units of its segments; there must be one."""
        chosen, stops = compiled(cheapest)(self.ends(time_s), self._prices(unit_price), to_go, _EQUAL)
        path = Runs(np.append(0, stops[:-1]), stops, self.entries.type[chosen])
        return path, self.entries.least[chosen].astype(np.float64)

    def maximal_below(self, time_s: float, unit_price: Floats, limit: float, most: int) -> tuple[Runs, Floats, float]:
        """List the cheapest segments that no longer one with as few units contains.

        Returns:
            The segments, sorted, and the units of each; and below which cost of a path they are all there are.
        """
        ends, prices = self.ends(time_s), self._prices(unit_price)
        is_maximal = ends > np.arange(ends.shape[1])
        is_maximal[:, 1:] &= ends[:, 1:] > ends[:, :-1]
        is_maximal[1:] &= (ends[1:] > ends[:-1]) | (np.diff(self.entries.type) > 0)[:, None]
        entry, first = np.nonzero(is_maximal)
        end = ends[entry, first]
        come = np.minimum.accumulate(compiled(from_start)(ends, prices)[::-1])[::-1]
        rest = np.minimum.accumulate(compiled(to_go)(ends, prices))
        cost = come[first] + prices[entry] + rest[end]
        if np.count_nonzero(cost < limit) > most:
            limit = float(np.partition(cost, most)[most])
        types = self.entries.type[entry]
        order = np.lexsort((types, end, first))
        kept = order[cost[order] < limit]
        units = self.entries.least[entry[kept]].astype(np.float64)
        return Runs(first[kept], end[kept].astype(np.int64), types[kept]), units, limit

    def parted(self, covering: Runs) -> Runs:
        """Return a path of segments that overlap, each cut where it sends the least."""
        first, end, chosen, position = covering.first, covering.end, list[int](), 0
        while position < self._chain.length:
            chosen.append(int(np.argmax(np.where(first <= position, end, -1))))
            position = int(end[chosen[-1]])
        cuts = [0]
        for before, after in pairwise(chosen):
            low = max(int(first[after]), cuts[-1] + 1)
            cuts.append(low + int(np.argmin(self._crossing[low : end[before] + 1])))
        return Runs(np.array(cuts), np.array([*cuts[1:], self._chain.length]), covering.type[chosen])

    def _prices(self, unit_price: Floats) -> Floats:
        return np.asarray(self.entries.least * unit_price[self.entries.type])


def _most_replicas(problem: Problem) -> Ints:
    """Return [T], the most replicas of a stage that the limits on units and the budget allow."""
    if problem.objective == "max-load":
        return np.minimum(problem.max_units, 1)
    affordable = problem.budget_per_hour * (1 + BUDGET_TOLERANCE) / np.maximum(problem.price_per_hour, 1e-300)
    return np.minimum(problem.max_units, np.minimum(affordable, 1e15).astype(np.int64))


def _no_less_than_fewer(entries: ReplicaRanges, ends: LastEnds) -> LastEnds:
    """Return for every entry the furthest of its ends and those of the entries of its type before it."""
    furthest = ends.copy()
    for e in np.flatnonzero(np.diff(entries.type) == 0).tolist():
        np.maximum(furthest[e], furthest[e + 1], out=furthest[e + 1])
    return furthest


def counted_up(parts: Ints) -> Ints:
    """Return 0, 1, ... for the parts of each."""
    return np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)


def furthest(sums: Sums, shares: Shares, limit_s: float, ends: LastEnds) -> None:
    """Fill in, for entries and positions, the last ends of segments that take no longer than the limit.

    The position itself where there is none.

    Args:
        sums: Of the chain.
        shares: Of the entries.
        limit_s: Seconds.
        ends: [E, n], to be filled in.
    """
    sync_s, shared_s, usable = sums.sync_s, sums.shared_s, sums.usable
    length, count = usable.shape[1], len(shares.types)
    least_s = np.empty(length + 1)  # of what is needed until a position, from it on
    for e in range(count):
        t, extra = shares.types[e], shares.synchronise[e]
        share, most_s, least = shares.data[e], limit_s / shares.compute[e], np.inf
        compute_s, until_s, since_s = sums.compute_s[t], sums.until_s[t], sums.since_s[t]
        if len(sums.serial_compute_s):
            own = shares.parallel[e]
            compute_s = sums.serial_compute_s[t] * (1 - own) + compute_s * own
            until_s = sums.serial_until_s[t] * (1 - own) + until_s * own
            since_s = sums.serial_since_s[t] * (1 - own) + since_s * own
            share, most_s = 1.0, limit_s
        for c in range(length, -1, -1):
            least = min(least, share * until_s[c] + extra * sync_s[t, c])
            least_s[c] = least
        by_compute = at = 0
        for a in range(length):
            most_compute_s, most_shared_s = compute_s[a] + most_s, shared_s[t, a] + limit_s
            most_until_s = share * since_s[a] + extra * sync_s[t, a] + limit_s
            while by_compute < length and compute_s[by_compute + 1] <= most_compute_s:
                by_compute += 1
            # what an end and all behind it send rules out the rest, nearly: from there a few steps back
            limit = min(by_compute, usable[t, a])
            end = min(at, limit)
            while end < limit and least_s[end + 1] <= most_until_s:
                end += 1
            while end > a and least_s[end] > most_until_s:
                end -= 1
            at = end
            while end > a:
                if shared_s[t, end] <= most_shared_s:
                    until = share * until_s[end] + extra * sync_s[t, end]
                    if compute_s[end] <= most_compute_s and until <= most_until_s:
                        break
                end -= 1
            ends[e, a] = max(a, end)


def to_go(ends: LastEnds, prices: Floats) -> Floats:
    """Return [n + 1], what the units from a position to the end of the chain cost at least."""
    count, length = ends.shape
    found, best = np.full(length + 1, np.inf), np.full(length + 1, np.inf)
    found[length] = best[length] = 0.0
    for a in range(length - 1, -1, -1):
        least = np.inf
        for e in range(count):
            if ends[e, a] > a:
                least = min(least, prices[e] + best[ends[e, a]])
        found[a], c = least, a
        while c <= length and best[c] > least:  # best[c]: the least over a .. c, which never rises with c
            best[c] = least
            c += 1
    return found


def from_start(ends: LastEnds, prices: Floats) -> Floats:
    """Return [n + 1], what the units up to a position cost at least; from later positions one comes no less far."""
    count, length = ends.shape
    found, best = np.full(length + 1, np.inf), np.full(length + 1, np.inf)
    found[0] = best[0] = 0.0
    begins = np.zeros(count, np.int64)  # the first position from which an entry comes as far
    for c in range(1, length + 1):
        least = np.inf
        for e in range(count):
            a = begins[e]
            while a < c and ends[e, a] < c:
                a += 1
            begins[e] = a
            if a < c:
                least = min(least, prices[e] + best[a])
        found[c], a = least, c
        while a >= 0 and best[a] > least:  # best[a]: the least over a .. c, which never falls with a
            best[a] = least
            a -= 1
    return found


def cheapest(ends: LastEnds, prices: Floats, to_go: Floats, equal: float) -> tuple[Ints, Ints]:
    """Return the entries of the cheapest path, and where its steps end; there must be one.

    Of ends that are as good the last is taken: it fits where any does.
    """
    count, length = ends.shape
    entries, stops, window = np.empty(length, np.int64), np.empty(length, np.int64), np.empty(length + 1)
    steps = position = 0
    while position < length:
        best, known, window[position] = np.inf, position, np.inf  # window[c]: the least of to_go over position + 1 .. c
        for e in range(count):
            end = ends[e, position]
            while known < end:
                known += 1
                window[known] = min(window[known - 1], to_go[known])
            if end > position and prices[e] + window[end] < best:
                best, entries[steps] = prices[e] + window[end], e
        if best == np.inf:
            raise ValueError("there is no path")
        last = ends[entries[steps], position]
        for c in range(position + 1, last + 1):
            if to_go[c] <= window[last] * (1 + equal):
                stops[steps] = c
        position = stops[steps]
        steps += 1
    return entries[:steps], stops[:steps]
