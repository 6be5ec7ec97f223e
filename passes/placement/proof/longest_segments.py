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

Left out: the loops (``longest_loops.py``), memory of a replica, values that skip layers.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np

from heterps_compile.cluster.local import usable_cores
from heterps_compile.cost.problem import Bools, Floats, Ints
from heterps_compile.passes.placement.geometry import Chain

from .longest_loops import Ends, Shares, Sums, Task, cheapest, come, compiled, furthest, through, to_go

_SLACK = 2e-10  # relative, in favour of reaching further: more than rounding is, less than two plans need to differ by
_EQUAL = 1e-12  # relative; what the order of summation may change
_MOST_THREADS = 4
_MANY = 50_000  # ends that are worth several threads
_NEAR = 0.93  # ratio of times down to which ends are begun from those of the longer one


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Types with ``least`` to ``most`` replicas, [E] each, in this order."""

    type: Ints
    least: Ints
    most: Ints

    def take(self, index: Ints) -> "Entries":
        """Return some of them."""
        return Entries(self.type[index], self.least[index], self.most[index])

    def singles(self, are_exact: Bools) -> "Entries":
        """Make every number of replicas of some entries, [E], one of its own."""
        parts = np.where(are_exact, self.most - self.least + 1, 1)
        whole, part = self.take(np.repeat(np.arange(len(self)), parts)), counted_up(parts)
        is_part = np.repeat(parts > 1, parts)
        return Entries(whole.type, whole.least + part, np.where(is_part, whole.least + part, whole.most))

    def halves(self) -> "Entries":
        """Part the numbers of replicas of those that have several."""
        parts = 1 + (self.least < self.most)
        whole, part = self.take(np.repeat(np.arange(len(self)), parts)), counted_up(parts)
        middle, is_part = (whole.least + whole.most) // 2, np.repeat(parts > 1, parts)
        return Entries(
            whole.type,
            np.where(is_part & (part == 1), middle + 1, whole.least),
            np.where(is_part & (part == 0), middle, whole.most),
        )

    def __len__(self) -> int:
        return len(self.type)


class Reach:
    """The reach of stages on the chain of a problem, and the cheapest paths."""

    def __init__(self, chain: Chain) -> None:
        """Sum up the layers before each position."""
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

    def ends(self, entries: Entries, batch_s: float) -> Ends:
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
        if len(keys) and _NEAR * last_s <= batch_s <= last_s:
            order = np.argsort(keys)
            place = order[np.minimum(np.searchsorted(keys, own, sorter=order), len(keys) - 1)]
            rows = np.where(keys[place] == own, place, -1)
        ends = np.empty((len(own), self._sums.usable.shape[1]), np.int32)
        work = self._sums, self._shares(entries), batch_s * (1 + _SLACK), ends
        threads = _threads() if ends.size >= _MANY else 1
        tasks = [Task(before, rows, first, threads) for first in range(threads)]
        others = [_pool().submit(compiled(furthest), *work, task) for task in tasks[1:]]
        compiled(furthest)(*work, tasks[0])
        for other in others:
            other.result()
        self._last = batch_s, own, ends
        return ends

    def prices(self, entries: Entries) -> Floats:
        """Return [E], what the units of an entry cost at least."""
        return np.asarray(entries.least * self._problem.price_per_hour[entries.type])

    def to_go(self, entries: Entries, ends: Ends) -> Floats:
        """Return [n + 1], what the units from a position to the end of the chain cost at least."""
        return compiled(to_go)(ends, self.prices(entries))

    def come(self, entries: Entries, ends: Ends) -> Floats:
        """Return [n + 1], what the units up to a position cost at least."""
        return compiled(come)(ends, self.prices(entries))

    def through(self, entries: Entries, ends: Ends, to_go: Floats) -> Floats:
        """Return [E], what the cheapest path with an entry costs at least."""
        rest = np.minimum.accumulate(to_go)
        return compiled(through)(ends, self.come(entries, ends), rest) + self.prices(entries)

    def path(self, entries: Entries, ends: Ends, to_go: Floats) -> tuple[Ints, Ints, Ints]:
        """Return where the steps of the cheapest path begin and end, and their entries; there must be one."""
        chosen, stops = compiled(cheapest)(ends, self.prices(entries), to_go, _EQUAL)
        return np.append(0, stops[:-1]), stops, chosen

    def _shares(self, entries: Entries) -> Shares:
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
