"""Cheapest paths over the furthest segments of a chain, at one time of a batch.

Legend: E entries, each a type with a number of replicas, its price, and for every position the furthest end of a
segment. ``to_go[a]`` is the least price of units from position a to the end::

    to_go[n] = 0        to_go[a] = min over entries e of price[e] + min over c in a + 1 .. ends[e, a] of to_go[c]

A bound for any values between layers, and exact where a value passes to the next layer alone: an end c within a window
may send too many bytes, but then the furthest one, behind it, fits, sends less and hence receives less as the beginning
of what follows; from there the way is no dearer than from c.

The least over a window from a + 1 on is kept for every end while a goes down; a new value takes the place of those that
are larger, up to the first that is not. Entries that cost no less than one which reaches as far are left out.
O(E * positions).

Left out: how far segments reach (``reach.py``).
"""

from collections.abc import Sequence

import numpy as np

from heterps_compile.cost.problem import Floats, Ints

_EQUAL = 1e-12  # relative; what the order of summation may change


class ReachPaths:
    """Paths over the furthest segments of E entries.

    Attributes:
        to_go: [n + 1], inf where there is no path.
    """

    def __init__(self, ends: Sequence[Ints], price: Floats) -> None:
        """Take E times [n] ends and [E] prices.

        Args:
            ends: The furthest end from every position; the position itself where there is none.
            price: Of the entries.
        """
        order = np.argsort(price, kind="stable")
        table = np.stack([ends[e] for e in order.tolist()]).astype(np.int32)
        self._length = length = table.shape[1]
        firsts = np.arange(length, dtype=np.int32)
        kept = table > firsts
        kept[1:] &= table[1:] > np.maximum.accumulate(table, axis=0)[:-1]
        self._first, entry = np.divmod(np.flatnonzero(np.ascontiguousarray(kept.T)), len(order))
        self._end = table[entry, self._first].astype(np.int64)
        self._entry, self._price = order[entry], price[order][entry]
        self._rows = np.searchsorted(self._first, np.arange(length + 1)).tolist()
        self.to_go = self._solve()

    def path(self) -> list[tuple[int, int, int]]:
        """Give first position, end and entry of the steps of the cheapest path; there must be one.

        Of ends that are as good the last is taken: it fits where any does.
        """
        steps: list[tuple[int, int, int]] = []
        position = 0
        while position < self._length:
            row = slice(self._rows[position], self._rows[position + 1])
            ends = self._end[row] - position
            rest = self.to_go[position + 1 : position + 1 + int(ends.max())]
            least = np.minimum.accumulate(rest)[ends - 1]
            best = int(np.argmin(self._price[row] + least))
            equal = rest[: ends[best]] <= least[best] * (1 + _EQUAL)
            end = position + 1 + int(np.flatnonzero(equal)[-1])
            steps.append((position, end, int(self._entry[row][best])))
            position = end
        return steps

    def _solve(self) -> Floats:
        # all below zero, so that the best of a window rises with its end, as a search needs it
        gain, best = np.full(self._length + 1, -np.inf), np.full(self._length + 1, -np.inf)
        gain[-1] = best[-1] = 0.0
        price, ends, rows, most = -self._price, self._end, self._rows, np.maximum.reduce
        after = 0.0  # best[position + 1]
        for position in range(self._length - 1, -1, -1):
            start, stop = rows[position], rows[position + 1]
            if start < stop:
                value = most(price[start:stop] + best.take(ends[start:stop]))
                gain[position] = value
                if value > after:
                    best[position : position + 1 + best[position + 1 :].searchsorted(value)] = value
                else:
                    best[position] = value
                after = value
            else:
                after = -np.inf
        return 0.0 - gain
