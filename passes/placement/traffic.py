"""Bytes of a batch into and out of every segment of a chain.

A value counts for a segment (a, c) of blocks a .. c - 1 in a box of the table over a and c::

    into it     where  source < a <= target < c     source the producer or the reader before, target the reader
    out of it   where  a <= source < c <= target    source the producer, target the last reader

so a table is a sum of boxes. Most boxes reach over all rows of a tile, or end close to its rows.

Left out: the time the bytes take (``geometry.py``).
"""

from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Bytes of the segments that begin at R neighbouring positions, for W ends from the first on.

    Attributes:
        first: Position of row 0; column w is end first + 1 + w.
        received_bytes, sent_bytes: [R, W].
        receives, sends: [R, W], whether there are any.
    """

    first: int
    received_bytes: Floats
    sent_bytes: Floats
    receives: Bools
    sends: Bools


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTraffic:
    """Traffic of all segments.

    Attributes:
        moved_bytes: [N, N], in and out, by first position and end; inf where there is no segment.
        talks: [N, N], whether there are any, in and out: 0, 1 or 2.
    """

    moved_bytes: Floats
    talks: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Values between blocks: [V] source, target and size."""

    source: Ints
    target: Ints
    size_bytes: Floats

    def near(self, mask: Bools, low: int) -> "Values":
        """Return some of them, counted from a position."""
        return Values(self.source[mask] - low, self.target[mask] - low, self.size_bytes[mask])


class Crossings:
    """The values of a chain that pass between blocks."""

    def __init__(self, enter: Values, leave: Values) -> None:
        self._enter, self._leave = (v.near((v.source < v.target) & (v.size_bytes > 0), 0) for v in (enter, leave))
        sizes = np.concatenate([enter.size_bytes, leave.size_bytes])
        # sums of whole numbers are exact, and nothing is where they are 0; others leave rounding where nothing is
        self._exact = bool(np.all(sizes == np.rint(sizes)) and sizes.sum() < 2.0**52)

    def traffic(self, low: int, high: int, furthest: int) -> Traffic:
        """Return the bytes for the segments that begin at low .. high - 1 and end at ``furthest`` or before."""
        width = furthest - low
        enter, leave, shape = self._enter, self._leave, (high - low, width)
        near = (enter.source < high - 1) & (enter.target >= low) & (enter.target < low + width)
        enter = enter.near(near, low)
        rows, columns = (np.maximum(enter.source + 1, 0), enter.target + 1), (enter.target, enter.target * 0 + width)
        received, receives = self._sums(rows, columns, enter.size_bytes, shape)
        leave = leave.near((leave.source >= low) & (leave.source < low + width), low)
        rows, columns = (leave.source * 0, leave.source + 1), (leave.source, leave.target)
        sent, sends = self._sums(rows, columns, leave.size_bytes, shape)
        return Traffic(low, received, sent, receives, sends)

    @property
    def longest_span(self) -> int:
        """How many blocks further a value goes at most."""
        return max(int((v.target - v.source).max(initial=0)) for v in (self._enter, self._leave))

    def passing_bytes(self, span: int, length: int) -> tuple[Floats, Floats]:
        """Return [n + 1] twice, the least bytes into and out of a segment of ``span`` blocks or more at a position.

        Into one that begins there pass all values that cross the position and skip no more than ``span`` blocks, and
        out of one that ends there.
        """
        sums = []
        for values in (self._enter, self._leave):
            short = values.near(values.target - values.source <= span, 0)
            change = np.zeros((2, length + 2))
            for row, amounts in enumerate((short.size_bytes, np.ones(len(short.source)))):
                change[row] += np.bincount(short.source + 1, amounts, length + 2)
                change[row] -= np.bincount(short.target + 1, amounts, length + 2)
            crossing, count = np.cumsum(change, axis=1)[:, :-1]
            spared = 0.0 if self._exact else 1e-12 * float(short.size_bytes.sum())  # rounding of the sums
            sums.append(np.where(count > 0.5, np.maximum(crossing - spared, 0.0), 0.0))
        return sums[0], sums[1]

    def _sums(
        self, rows: tuple[Ints, Ints], columns: tuple[Ints, Ints], sizes: Floats, shape: tuple[int, int]
    ) -> tuple[Floats, Bools]:
        sums = box_sums(rows, columns, sizes, shape)
        if self._exact:
            return sums, sums > 0
        lies = box_sums(rows, columns, np.ones(len(sizes)), shape) > 0.5
        return np.where(lies, sums, 0.0), lies


def box_sums(rows: tuple[Ints, Ints], columns: tuple[Ints, Ints], amounts: Floats, shape: tuple[int, int]) -> Floats:
    """Return [R, W], every amount added over its box of rows r0 .. r1 - 1 and columns c0 .. c1 - 1.

    Boxes may reach beyond the table. Far columns are sums of one row where boxes have all rows there.
    """
    height, width = shape
    near = 2 * height
    (top, bottom), (left, right) = rows, columns
    whole = (top <= 0) & (bottom >= height)
    ragged = np.flatnonzero(~whole & (((left >= near) & (left < width)) | ((right >= near) & (right < width))))
    if width < 2 * near or len(ragged) > near:
        return _dense_sums(rows, columns, amounts, shape)
    sums = np.empty(shape)
    sums[:, :near] = _dense_sums(rows, columns, amounts, (height, near))
    change = np.bincount(np.clip(left[whole], 0, width), amounts[whole], width + 1)
    change -= np.bincount(np.clip(right[whole], 0, width), amounts[whole], width + 1)
    far = np.cumsum(change[near:width])
    sums[:, near:] = sums[:, near - 1, None] + far
    for box in ragged:
        if left[box] >= near:
            sums[top[box] : bottom[box], left[box] : right[box]] += amounts[box]
        else:
            sums[top[box] : bottom[box], right[box] :] -= amounts[box]
    return sums


def _dense_sums(rows: tuple[Ints, Ints], columns: tuple[Ints, Ints], amounts: Floats, shape: tuple[int, int]) -> Floats:
    height, width = shape
    flat = np.concatenate([np.minimum(r, height) * (width + 1) + np.minimum(c, width) for r in rows for c in columns])
    signs = np.repeat([1.0, -1.0, -1.0, 1.0], len(amounts))
    change = np.bincount(flat, signs * np.tile(amounts, 4), (height + 1) * (width + 1))
    return np.asarray(change.reshape(height + 1, width + 1)[:-1, :-1].cumsum(0).cumsum(1), np.float64)
