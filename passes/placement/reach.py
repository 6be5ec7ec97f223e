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

with the bytes that every segment with that end sends, or receives, at least. ``compute`` grows with the position, and
``until`` and ``since`` do nearly: the least of ``until`` at a position or after it, and the largest ``since`` at one or
before it, take their place where a bound is asked for.

Left out: what paths cost (``reach_paths.py``), memory of a replica, values that skip layers.
"""

from typing import Literal

import numpy as np

from heterps_compile.cost.problem import Floats, Ints

from .chain import Chain

Kind = Literal["loose", "tight", "sure"]
"""``loose``: no segment ends later, whatever later first positions allow. ``tight``: no segment from this position ends
later. ``sure``: one that takes no longer, where values pass to the next layer alone."""

_SLACK = 1e-9  # relative; more than rounding can be, in favour of reaching further
_MOST_KEPT = 16_000_000  # numbers in tables of one type and number of replicas
_STEPS_BACK = 40  # positions tried for an end whose bytes the time allows


class Reach:
    """The reach of stages on the chain of a problem."""

    def __init__(self, chain: Chain) -> None:
        """Sum up the layers before each position."""
        problem, positions = chain.problem, np.arange(chain.length + 1)
        every = np.arange(problem.type_count)[:, None]
        self._compute_s, data_s, sync_s, self._shared_s = chain.work_between(
            0 * positions[None], positions[None], every
        )
        received_s, sent_s = (
            size_bytes * problem.seconds_per_byte[:, None] + (size_bytes > 0) * problem.latency_s[:, None]
            for size_bytes in chain.passing_bytes(1)
        )
        self._until_s, self._since_s = data_s + sent_s, data_s - received_s
        self._sync_s = sync_s if np.any(problem.sync_s > 0) else None
        blocked = chain.blocked_before(positions)
        self._usable = np.stack([np.searchsorted(row, row[:-1] + 0.5) - 1 for row in blocked])
        self._problem, self._firsts = problem, positions[:-1]
        self._kept: dict[tuple[int, float], tuple[Floats, Floats, Floats, Floats]] = {}

    def ends(self, type_: int, units: float, batch_s: float, kind: Kind) -> Ints:
        """Give [n], the last end of a segment with so many replicas or fewer from every position.

        The position itself where there is none. More replicas reach further, but for one: it synchronises nothing.

        Args:
            type_: Device type.
            units: Replicas; inf for any number.
            batch_s: Time of a batch.
            kind: See :data:`Kind`.
        """
        ends = self._ends(type_, units, batch_s, kind)
        if self._sync_s is None or units <= 1:
            return ends
        return np.maximum(ends, self._ends(type_, 1, batch_s, kind))

    def _ends(self, type_: int, units: float, batch_s: float, kind: Kind) -> Ints:
        limit_s = batch_s * (1 - _SLACK if kind == "sure" else 1 + _SLACK)
        alpha = self._problem.compute_parallel[type_]
        compute_s = self._compute_s[type_]
        with np.errstate(divide="ignore"):  # no limit where any number of replicas divides all of it
            most_s = compute_s[:-1] + limit_s / (1 - alpha + alpha / units)
        ends = np.searchsorted(compute_s, most_s, side="right") - 1
        np.minimum(ends, self._usable[type_], out=ends)
        if self._shared_s is not None:
            shared_s = self._shared_s[type_]
            np.minimum(ends, np.searchsorted(shared_s, shared_s[:-1] + limit_s, side="right") - 1, out=ends)
        until_s, least_until_s, since_s, most_since_s = self._moving(type_, units)
        until_most_s = (most_since_s if kind == "loose" else since_s)[:-1] + limit_s
        late = np.flatnonzero(least_until_s[ends] > until_most_s)
        ends[late] = np.searchsorted(least_until_s, until_most_s[late], side="right") - 1
        np.maximum(ends, self._firsts, out=ends)
        if kind == "sure":
            for _ in range(_STEPS_BACK):
                late = np.flatnonzero((until_s[ends] > until_most_s) & (ends > self._firsts))
                if not len(late):
                    break
                ends[late] -= 1
            else:
                ends[late] = self._firsts[late]
        return np.asarray(ends)

    def _moving(self, type_: int, units: float) -> tuple[Floats, Floats, Floats, Floats]:
        """Give ``until``, the least of it from each position on, ``since``, and the most of it up to each position."""
        synchronises = self._sync_s is not None and units > 1
        key = (type_, units)
        if key in self._kept:
            return self._kept[key]
        beta = self._problem.data_parallel[type_]
        share = 1 - beta + beta / units
        until_s, since_s = share * self._until_s[type_], share * self._since_s[type_]
        if self._sync_s is not None and synchronises:
            until_s, since_s = until_s + self._sync_s[type_], since_s + self._sync_s[type_]
        found = until_s, np.minimum.accumulate(until_s[::-1])[::-1], since_s, np.maximum.accumulate(since_s)
        if 4 * until_s.size * len(self._kept) < _MOST_KEPT:
            self._kept[key] = found
        return found
