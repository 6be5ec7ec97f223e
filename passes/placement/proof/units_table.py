"""Whether some path keeps to the limits on units and to a budget, by a table of units: exact, and no programme.

At one time of a batch every segment takes so many units of its type. Of the paths to a position the table has, for each
number of units of every type but one, the fewest units of that one, the type with the highest limit::

    fewest[end][u_t + k] = min over segments (a, end, t, k) of fewest[a][u_t]               t another type
    fewest[end][u]       = min over segments (a, end, last, k) of fewest[a][u] + k          the last type

With two types, 32 units of the one and 1,000 of the other, that is 33 numbers for each position. O(segments * numbers).

Left out: costs that are no prices of units (``label_setting.py``, ``path_programme.py``).
"""

from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Floats, Ints
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Segments

from .paths import StageCounts

_ASKED = 256  # segments between two looks at the clock


@dataclass(frozen=True, slots=True, eq=False)
class UnitLimits:
    """What the units of a path must keep to.

    Attributes:
        most: [T], units of each type.
        price: [T], of a unit.
        money: What all of them may cost.
        counts: How many stages there may be.
    """

    most: Ints
    price: Floats
    money: float
    counts: StageCounts

    @property
    def shape(self) -> tuple[int, ...]:
        """Return that of the table of a position: units of every type, 1 for the last, and states of the counts."""
        sizes = self.most + 1
        sizes[self.last] = 1
        return (*sizes.tolist(), self.counts.last + 1)

    @property
    def last(self) -> int:
        """Return the type whose units are the table's numbers."""
        return int(np.argmax(self.most))


def cheapest_within(
    segments: Segments, units: Floats, limits: UnitLimits, length: int, deadline: Deadline
) -> Ints | None:
    """Return the segments of a path within the limits whose units cost the least; None where there is no such path.

    Args:
        segments: M segments, sorted.
        units: [M], that each takes of its type; inf where it is not possible.
        limits: What to keep to.
        length: The last position.
        deadline: When to stop.

    Raises:
        TimeUpError: where the deadline comes first.
    """
    kept = np.flatnonzero(units <= limits.most[segments.type])
    first, end, types = (x[kept].tolist() for x in (segments.first, segments.end, segments.type))
    taken = units[kept].astype(np.int64).tolist()
    table = np.full((length + 1, *limits.shape), np.inf)
    table[(0,) * (1 + len(limits.most))] = limits.counts.start()
    position, before = -1, table[0]
    for number, (a, c, t, k) in enumerate(zip(first, end, types, taken, strict=True)):
        if number % _ASKED == 0:
            deadline.check()
        if a != position:
            position, before = a, limits.counts.after_stage(table[a])
        _take(table[c], before, limits, t, k)
    fewest = table[-1] + limits.counts.finish()
    paid = np.where(np.isfinite(fewest), fewest, 0.0) * limits.price[limits.last]
    paid[np.isinf(fewest)] = np.inf
    for t, count in enumerate(limits.shape[:-1]):
        along = [1] * paid.ndim
        along[t] = count
        paid = paid + (np.arange(count) * limits.price[t]).reshape(along)
    at = np.unravel_index(int(np.argmin(paid)), paid.shape)
    if np.isinf(paid[at]) or paid[at] > limits.money:
        return None
    return kept[_traced(table, at, limits, (first, end, types, taken))]


def _take(after: Floats, before: Floats, limits: UnitLimits, t: int, k: int) -> None:
    """Take into the table of an end what a segment of a type with so many units makes of that of its first position."""
    if t == limits.last:
        come = before + k
        come[come > limits.most[t]] = np.inf
        np.minimum(after, come, out=after)
    else:
        there, here = (slice(None),) * t + (slice(k, None),), (slice(None),) * t + (slice(None, -k),)
        np.minimum(after[there], before[here], out=after[there])


def _traced(
    table: Floats,
    at: tuple[np.intp, ...],
    limits: UnitLimits,
    listed: tuple[list[int], list[int], list[int], list[int]],
) -> Ints:
    """Return the segments of the path that came to a number of the last position."""
    first, end, types, taken = listed
    of_end: dict[int, list[int]] = {}
    for segment, c in enumerate(end):
        of_end.setdefault(c, []).append(segment)
    position, cell, path = len(table) - 1, tuple(map(int, at)), list[int]()
    while position > 0:
        segment, cell = next(
            found
            for segment in of_end[position]
            for found in _before(
                table, cell, position, limits, (segment, first[segment], types[segment], taken[segment])
            )
        )
        path.append(segment)
        position = first[segment]
    return np.array(path[::-1], np.int64)


def _before(
    table: Floats, cell: tuple[int, ...], position: int, limits: UnitLimits, segment: tuple[int, int, int, int]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return the segment with the cell of its first position, if the number of a cell came over it."""
    number, a, t, k = segment
    used, state = list(cell[:-1]), cell[-1]
    here = table[position][cell]
    if t != limits.last:
        used[t] -= k
        if used[t] < 0:
            return []
    came = here - k if t == limits.last else here
    is_last = limits.counts.more and state == limits.counts.last
    states = [own for own in ((state - 1, state) if is_last else (state - 1,)) if own >= 0]
    return [(number, (*used, own)) for own in states if table[a][(*used, own)] == came]
