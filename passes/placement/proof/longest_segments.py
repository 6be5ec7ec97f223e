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
        until = w (data + sent) + sync    since = w (data - received) + sync    w = 1 - beta + beta / k

with the bytes that every segment with that end sends, or receives, at least. An *entry* is a type with a number of
replicas, or with several, priced as the least and as long as the most of them. The least price of units from a position
to the end of the chain,

    to_go(n) = 0        to_go(a) = min over entries e of price(e) + min over c in a + 1 .. end(e, a) of to_go(c)

is a bound for any values between layers, and exact where entries are of one number of replicas and a value passes to
the next layer alone: an end c within a window may send too many bytes, but then the furthest one, behind it, fits,
sends less and hence receives less as the beginning of what follows; from there the way is no dearer than from c.

A step of the march takes hundreds of thousands of segments one by one, each a few comparisons that depend on the one
before; array operations take several times as long. numba compiles the loops at the end of this file to machine code,
the first time for some seconds, and keeps that beside the bytecode, or in the user's cache where that folder is
read-only. Legend of the loops: T types, E entries, n positions.

Left out: memory of a replica, values that skip layers, what the march does with it (``march.py``).
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cluster.local import usable_cores
from heterps_compile.cost.problem import Bools, Floats, Ints
from heterps_compile.passes.placement.geometry import Chain

from .effort import EFFORT, MarchEffort

_SLACK = 2e-10  # relative, in favour of reaching further: more than rounding is, less than two plans need to differ by
_EQUAL = 1e-12  # relative; what the order of summation may change
_MOST_THREADS = 4
_P = ParamSpec("_P")
_R = TypeVar("_R")

LastEnds = NDArray[np.int32]
"""Positions [E, n], of which there are many."""


class Sums(NamedTuple):
    """What decides where a stage must end, [T, n + 1] each.

    Attributes:
        compute_s: Computation before a position.
        until_s, since_s: Data movement before a position, with what a segment that ends there sends, and less what one
            that begins there receives.
        sync_s: What more than one replica synchronises.
        shared_s: What no replica divides, nor has to itself.
        usable: [T, n], the last end that the layers allow.
    """

    compute_s: Floats
    until_s: Floats
    since_s: Floats
    sync_s: Floats
    shared_s: Floats
    usable: Ints


class Shares(NamedTuple):
    """What entries take of the sums, [E] each.

    Attributes:
        types: Device types.
        compute, data: Shares of computation and data movement that one of the replicas takes.
        synchronise: Whether they synchronise, and a single replica, which does not, may reach further.
    """

    types: Ints
    compute: Floats
    data: Floats
    synchronise: Ints


class Part(NamedTuple):
    """Every so many entries from the first on, and the last ends at a longer limit.

    Attributes:
        ends: Of some entries, at that limit.
        rows: [E], which row is that of an entry; -1 for none.
        first, step: Which entries.
    """

    ends: LastEnds
    rows: Ints
    first: int
    step: int


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaRanges:
    """Types with ``least`` to ``most`` replicas, [E] each, in this order."""

    type: Ints
    least: Ints
    most: Ints

    def take(self, index: Ints) -> "ReplicaRanges":
        """Return some of them."""
        return ReplicaRanges(self.type[index], self.least[index], self.most[index])

    def singles(self, are_exact: Bools) -> "ReplicaRanges":
        """Make every number of replicas of some entries, [E], one of its own."""
        parts = np.where(are_exact, self.most - self.least + 1, 1)
        whole, part = self.take(np.repeat(np.arange(len(self)), parts)), counted_up(parts)
        is_part = np.repeat(parts > 1, parts)
        return ReplicaRanges(whole.type, whole.least + part, np.where(is_part, whole.least + part, whole.most))

    def halves(self) -> "ReplicaRanges":
        """Part the numbers of replicas of those that have several."""
        parts = 1 + (self.least < self.most)
        whole, part = self.take(np.repeat(np.arange(len(self)), parts)), counted_up(parts)
        middle, is_part = (whole.least + whole.most) // 2, np.repeat(parts > 1, parts)
        return ReplicaRanges(
            whole.type,
            np.where(is_part & (part == 1), middle + 1, whole.least),
            np.where(is_part & (part == 0), middle, whole.most),
        )

    def __len__(self) -> int:
        return len(self.type)


class LongestSegments:
    """The reach of stages on the chain of a problem, and the cheapest paths."""

    def __init__(self, chain: Chain, effort: MarchEffort = EFFORT.march) -> None:
        """Sum up the layers before each position."""
        self._effort = effort
        problem, positions = chain.problem, np.arange(chain.length + 1)
        every = np.arange(problem.type_count)[:, None]
        compute_s, data_s, sync_s, shared_s = chain.work_between(0 * positions[None], positions[None], every)
        received_s, sent_s = (
            size_bytes * problem.seconds_per_byte[:, None] + (size_bytes > 0) * problem.latency_s[:, None]
            for size_bytes in chain.passing_bytes(1)
        )
        none = np.zeros_like(compute_s)
        self._synchronises = bool(np.any(problem.sync_s > 0))
        self._sums = Sums(
            compute_s,
            data_s + sent_s,
            data_s - received_s,
            np.ascontiguousarray(sync_s) if self._synchronises else none,
            none if shared_s is None else np.ascontiguousarray(shared_s),
            np.stack([np.searchsorted(row, row[:-1] + 0.5) - 1 for row in chain.blocked_before(positions)]),
        )
        self._problem = problem
        nothing = np.zeros(0, np.int64)
        self._last = 0.0, nothing, np.zeros((1, 1), np.int32)  # time, keys of entries, ends

    def ends(self, entries: ReplicaRanges, batch_s: float) -> LastEnds:
        """Return [E, n], the last end of a segment with so many replicas from every position.

        The position itself where there is none. More replicas reach further, but for one: it synchronises nothing, so
        it counts with each.

        Args:
            entries: The most replicas of each count.
            batch_s: Time of a batch.
        """
        last_s, keys, before = self._last
        own = entries.most * self._problem.type_count + entries.type
        rows = np.full(len(own), -1)
        if len(keys) and self._effort.reused * last_s <= batch_s <= last_s:
            order = np.argsort(keys)
            place = order[np.minimum(np.searchsorted(keys, own, sorter=order), len(keys) - 1)]
            rows = np.where(keys[place] == own, place, -1)
        ends = np.empty((len(own), self._sums.usable.shape[1]), np.int32)
        work = self._sums, self._shares(entries), batch_s * (1 + _SLACK), ends
        threads = _threads() if ends.size >= self._effort.threads_from else 1
        parts = [Part(before, rows, first, threads) for first in range(threads)]
        others = [_pool().submit(compiled(furthest), *work, part) for part in parts[1:]]
        compiled(furthest)(*work, parts[0])
        for other in others:
            other.result()
        self._last = batch_s, own, ends
        return ends

    def prices(self, entries: ReplicaRanges) -> Floats:
        """Return [E], what the units of an entry cost at least."""
        return np.asarray(entries.least * self._problem.price_per_hour[entries.type])

    def to_go(self, entries: ReplicaRanges, ends: LastEnds) -> Floats:
        """Return [n + 1], what the units from a position to the end of the chain cost at least."""
        return compiled(to_go)(ends, self.prices(entries))

    def from_start(self, entries: ReplicaRanges, ends: LastEnds) -> Floats:
        """Return [n + 1], what the units up to a position cost at least."""
        return compiled(from_start)(ends, self.prices(entries))

    def through(self, entries: ReplicaRanges, ends: LastEnds, to_go: Floats) -> Floats:
        """Return [E], what the cheapest path with an entry costs at least."""
        rest = np.minimum.accumulate(to_go)
        return compiled(through)(ends, self.from_start(entries, ends), rest) + self.prices(entries)

    def path(self, entries: ReplicaRanges, ends: LastEnds, to_go: Floats) -> tuple[Ints, Ints, Ints]:
        """Return where the steps of the cheapest path begin and end, and their entries; there must be one."""
        chosen, stops = compiled(cheapest)(ends, self.prices(entries), to_go, _EQUAL)
        return np.append(0, stops[:-1]), stops, chosen

    def _shares(self, entries: ReplicaRanges) -> Shares:
        alpha, beta = self._problem.compute_parallel[entries.type], self._problem.data_parallel[entries.type]
        synchronise = ((entries.most > 1) & self._synchronises).astype(np.int64)
        return Shares(entries.type, 1 - alpha + alpha / entries.most, 1 - beta + beta / entries.most, synchronise)


def _threads() -> int:
    """Return how many threads share the work: one a core, or as many as OpenMP is told to take."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return min(_MOST_THREADS, int(told) if told.isdigit() and int(told) else usable_cores())


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="reach")


def counted_up(parts: Ints) -> Ints:
    """Return 0, 1, ... for the parts of each."""
    return np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the machine code of one of the functions below."""
    return cast("Callable[_P, _R]", _compiled(function))


@cache
def _compiled(function: Callable[..., object]) -> Callable[..., object]:
    import numba  # noqa: PLC0415  # takes a third of a second

    try:
        made = numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # no folder to keep it in
        made = numba.njit(nogil=True, error_model="numpy")(function)
    return cast("Callable[..., object]", made)


def furthest(sums: Sums, shares: Shares, limit_s: float, ends: LastEnds, part: Part) -> None:
    """Fill in, for entries and positions, the last ends of segments that take no longer than the limit.

    The position itself where there is none.

    Args:
        sums: Of the chain.
        shares: Of the entries.
        limit_s: Seconds.
        ends: [E, n], to be filled in.
        part: Which entries, and what to begin from.
    """
    compute_s, until_s, since_s, sync_s, shared_s, usable = sums
    length, count = usable.shape[1], len(shares.types)
    least_s, at = np.empty((2, length + 1)), np.zeros(2, np.int64)  # of until_s from a position on; with all, or alone
    for e in range(part.first, count, part.step):
        t, share, extra, row = shares.types[e], shares.data[e], float(shares.synchronise[e]), part.rows[e]
        most_s, least, alone = limit_s / shares.compute[e], np.inf, np.inf
        if row < 0:
            for c in range(length, -1, -1):
                least = min(least, share * until_s[t, c] + extra * sync_s[t, c])
                alone = min(alone, until_s[t, c])
                least_s[0, c], least_s[1, c] = least, alone
        by_compute = at[0] = at[1] = 0
        for a in range(length):
            most_compute_s, most_shared_s = compute_s[t, a] + most_s, shared_s[t, a] + limit_s
            most_until_s = share * since_s[t, a] + extra * sync_s[t, a] + limit_s
            if row >= 0:
                end = part.ends[row, a]
            else:
                while by_compute < length and compute_s[t, by_compute + 1] <= most_compute_s:
                    by_compute += 1
                limit, end = min(by_compute, usable[t, a]), a
                # what an end and all behind it send rules out the rest, nearly: from there a few steps back
                for way in range(2 if extra > 0 else 1):
                    c, most_s_there = min(at[way], limit), most_until_s if way == 0 else since_s[t, a] + limit_s
                    while c < limit and least_s[way, c + 1] <= most_s_there:
                        c += 1
                    while c > a and least_s[way, c] > most_s_there:
                        c -= 1
                    at[way], end = c, max(end, c)
            while end > a:
                if shared_s[t, end] <= most_shared_s:
                    until = share * until_s[t, end] + extra * sync_s[t, end]
                    if compute_s[t, end] <= most_compute_s and until <= most_until_s:
                        break
                    is_alone = extra > 0 and compute_s[t, end] <= compute_s[t, a] + limit_s
                    if is_alone and until_s[t, end] <= since_s[t, a] + limit_s:
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


def through(ends: LastEnds, from_start: Floats, rest: Floats) -> Floats:
    """Return [E], what the cheapest path with an entry costs at least, less its own price.

    Args:
        ends: Of the entries.
        from_start: [n + 1], what the units up to a position cost at least.
        rest: [n + 1], what those from a position on, or from one before it, cost at least.
    """
    count, length = ends.shape
    found = np.full(count, np.inf)
    for e in range(count):
        for a in range(length):
            if ends[e, a] > a:
                found[e] = min(found[e], from_start[a] + rest[ends[e, a]])
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
