"""Cheapest paths over the furthest segments of a chain, at one time of a batch.

Legend: E entries, each a type with a number of replicas, its price, and for every position the furthest end of a
segment. ``to_go[a]`` is the least price of units from position a to the end::

    to_go[n] = 0        to_go[a] = min over entries e of price[e] + to_go[ends[e, a]]             loose ends
                                   min over e and over c in a + 1 .. ends[e, a] of ... + to_go[c]    tight ends

Loose ends never fall with the position, so ``to_go`` never rises, and the furthest end is the best. With tight ends the
least of ``to_go`` over a window comes from windows of 1, 2, 4, ... positions. Entries that cost no less than one which
reaches as far are left out. O(E * positions).

Left out: how far segments reach (``reach.py``).
"""

from collections.abc import Sequence

import numpy as np

from heterps_compile.cost.problem import Floats, Ints


class ReachPaths:
    """Paths over the furthest segments of E entries.

    Attributes:
        to_go: [n + 1], inf where there is no path.
    """

    def __init__(self, ends: Sequence[Ints], price: Floats, *, windows: bool = False) -> None:
        """Take E times [n] ends and [E] prices.

        Args:
            ends: The furthest end from every position; the position itself where there is none.
            price: Of the entries.
            windows: Any end up to the furthest may be better than it.
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
        self._windows = _Windows(self._first, self._end, length) if windows else None
        self.to_go = self._solve()

    def path(self) -> list[tuple[int, int, int]]:
        """Give first position, end and entry of the steps of the cheapest path; there must be one."""
        steps: list[tuple[int, int, int]] = []
        position = 0
        while position < self._length:
            row = slice(self._rows[position], self._rows[position + 1])
            best = row.start + int(np.argmin(self._price[row] + self._rest(row)))
            end = int(self._end[best])
            if self._windows is not None:
                end = position + 1 + int(np.argmin(self.to_go[position + 1 : end + 1]))
            steps.append((position, end, int(self._entry[best])))
            position = end
        return steps

    def _rest(self, row: slice) -> Floats:
        return self.to_go[self._end[row]] if self._windows is None else self._windows.least(row)

    def _solve(self) -> Floats:
        to_go = np.full(self._length + 1, np.inf)
        to_go[-1] = 0.0
        price, ends, rows, windows = self._price, self._end, self._rows, self._windows
        if windows is not None:
            windows.set(self._length, 0.0)
        for position in range(self._length - 1, -1, -1):
            start, stop = rows[position], rows[position + 1]
            if start < stop:
                rest = to_go.take(ends[start:stop]) if windows is None else windows.least(slice(start, stop))
                to_go[position] = np.minimum.reduce(price[start:stop] + rest)
            if windows is not None:
                windows.set(position, to_go[position])
        return to_go


class _Windows:
    """The least of values over windows of positions, set from the last position to the first.

    ``least of 2^j from i`` lies at ``j * (n + 1) + i``; a window is covered by two of them.
    """

    def __init__(self, first: Ints, end: Ints, length: int) -> None:
        """Take the windows that will be asked for: first + 1 .. end."""
        size, depth = length + 1, int(length).bit_length() + 1
        logs = np.zeros(size + 1, np.int64)
        logs[1:] = np.log2(np.arange(1, size + 1)).astype(np.int64)
        level = logs[end - first]
        self._table = np.full(size * depth, np.inf)
        self._left, self._right = level * size + first + 1, level * size + end - (1 << level) + 1
        steps = np.arange(1, depth)
        self._from, self._to = (steps - 1) * size + (1 << (steps - 1)), np.arange(depth) * size
        self._levels, self._length = logs.tolist(), length
        self._column = np.empty(depth)

    def least(self, row: slice) -> Floats:
        """Give the least of some of the windows."""
        return np.asarray(np.minimum(self._table.take(self._left[row]), self._table.take(self._right[row])))

    def set(self, position: int, value: float) -> None:
        """Set a value; those behind it are set."""
        depth = self._levels[self._length - position + 1]
        column = self._column[: depth + 1]
        column[0] = value
        column[1:] = self._table.take(self._from[:depth] + position)
        self._table[self._to[: depth + 1] + position] = np.minimum.accumulate(column)
