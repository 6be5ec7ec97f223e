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
``until`` nearly does: from the last end that computation allows, and that some end behind it does not rule out, a few
steps back lead to one whose bytes fit too.

Left out: what paths cost (``reach_paths.py``), memory of a replica, values that skip layers.
"""

import numpy as np

from heterps_compile.cost.problem import Floats, Ints

from .chain import Chain

_SLACK = 2e-10  # relative, in favour of reaching further: more than rounding is, less than two plans need to differ by
_MOST_KEPT = 16_000_000  # numbers in tables of one type and number of replicas
_STEPS_BACK = 40  # positions tried for an end that the time allows; after as many the end stays too far
_NEAR = 2.0  # steps back, on average, up to which ends of a little more time are begun from


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
        self._kept: dict[tuple[int, float], tuple[Floats, Floats, Floats]] = {}
        self._alone: tuple[float, dict[int, Ints]] = (0.0, {})
        self._last: dict[tuple[int, float], tuple[float, float, Ints]] = {}  # time, mean length, ends

    def ends(self, type_: int, units: float, batch_s: float) -> Ints:
        """Give [n], the last end of a segment with so many replicas or fewer from every position.

        The position itself where there is none. More replicas reach further, but for
        one: it synchronises nothing.

        Args:
            type_: Device type.
            units: Replicas; inf for any number.
            batch_s: Time of a batch.
        """
        if self._sync_s is None:
            return self._ends(type_, units, batch_s)
        if self._alone[0] != batch_s:
            self._alone = (batch_s, {})
        alone = self._alone[1]
        if type_ not in alone:
            alone[type_] = self._ends(type_, 1, batch_s)
        return alone[type_] if units <= 1 else np.maximum(self._ends(type_, units, batch_s), alone[type_])

    def _ends(self, type_: int, units: float, batch_s: float) -> Ints:
        limit_s = batch_s * (1 + _SLACK)
        alpha = self._problem.compute_parallel[type_]
        compute_s, shared_s = self._compute_s[type_], None if self._shared_s is None else self._shared_s[type_]
        with np.errstate(divide="ignore"):  # no limit where any number of replicas divides all of it
            most_s = compute_s[:-1] + limit_s / (1 - alpha + alpha / units)
        until_s, least_until_s, since_s = self._moving(type_, units)
        most_until_s = since_s[:-1] + limit_s
        before_s, length, before = self._last.get((type_, units), (0.0, 0.0, self._firsts))
        is_near = shared_s is None and batch_s <= before_s and (before_s - batch_s) * length <= _NEAR * before_s
        if is_near:
            ends = before.copy()
            late = np.flatnonzero((compute_s[ends] > most_s) | (until_s[ends] > most_until_s))
        else:
            ends = np.searchsorted(compute_s, most_s, side="right") - 1
            np.minimum(ends, self._usable[type_], out=ends)
            if shared_s is not None:
                np.minimum(ends, np.searchsorted(shared_s, shared_s[:-1] + limit_s, side="right") - 1, out=ends)
            late = np.flatnonzero(until_s[ends] > most_until_s)
            behind = np.searchsorted(least_until_s, most_until_s[late], side="right") - 1
            ends[late] = np.maximum(np.minimum(ends[late], behind), late)
        for _ in range(_STEPS_BACK):
            end = ends[late]
            still = ((compute_s[end] > most_s[late]) | (until_s[end] > most_until_s[late])) & (end > late)
            late = late[still]
            if not len(late):
                break
            ends[late] = end[still] - 1
        if is_near or len(self._last) * ends.size < _MOST_KEPT:
            self._last[type_, units] = (batch_s, float((ends - self._firsts).mean()), ends)
        return ends

    def _moving(self, type_: int, units: float) -> tuple[Floats, Floats, Floats]:
        """Give ``until``, the least of it from each position on, and ``since``."""
        synchronises = self._sync_s is not None and units > 1
        key = (type_, units)
        if key in self._kept:
            return self._kept[key]
        beta = self._problem.data_parallel[type_]
        share = 1 - beta + beta / units
        until_s, since_s = share * self._until_s[type_], share * self._since_s[type_]
        if self._sync_s is not None and synchronises:
            until_s, since_s = until_s + self._sync_s[type_], since_s + self._sync_s[type_]
        found = until_s, np.minimum.accumulate(until_s[::-1])[::-1], since_s
        if 3 * until_s.size * len(self._kept) < _MOST_KEPT:
            self._kept[key] = found
        return found
