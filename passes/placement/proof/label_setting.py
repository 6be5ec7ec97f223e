"""The cheapest path over segments within limits on units, by label setting.

A path from position 0 to a is a label (units used [T], cost). Of two paths to a that used the same the cheaper one
dominates. With Lagrange multipliers, paid per unit on top of its price, every path that begins with a label costs at
least, where ``to_go`` is the cheapest rest with multipliers and without limits::

    cost with multipliers + to_go[a] - multipliers @ limits

and where that is not below a ceiling the label is dropped. With good multipliers and a ceiling near the optimum few
labels are left, also where a linear relaxation is far off: a few units of each of many types, say. So the ceiling
starts just above the bound that is known, and moves up until a path is found.

Labels are whole numbers in a mixed radix, with a digit for every type whose limit may bind.

Left out: the time of a batch, which fixes costs and units (``time_search.py``); bounds on the number of stages;
limits that are not on units (``path_programme.py``).
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from heterps_compile.cost.problem import Floats, Ints
from heterps_compile.passes.placement.geometry import Segments

from .effort import LabelEffort
from .paths import SegmentPrices

_MOST_LABELS = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class LimitedPath:
    """What was found.

    Attributes:
        bound: Every path within the limits costs at least this, without multipliers; inf where there is none.
        cost: Of the path, without multipliers; inf where none was found.
        chosen: Indices of its segments, in order; None where none was found.
    """

    bound: float
    cost: float = np.inf
    chosen: Ints | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """Labels of one position.

    Attributes:
        used: [N].
        cost: [N], with multipliers; ascending once they are joined.
        segment: [N], by which they came.
        before: [N], index of the label that came to where the segment begins.
    """

    used: Ints
    cost: Floats
    segment: Ints
    before: Ints

    def take(self, index: Ints) -> "_Labels":
        """Return some of them."""
        return _Labels(self.used[index], self.cost[index], self.segment[index], self.before[index])

    @staticmethod
    def join(parts: "list[_Labels]") -> "_Labels":
        """Put labels together; of those that used the same the cheapest stays."""
        all_ = _Labels(*(np.concatenate([getattr(part, name) for part in parts]) for name in _Labels.__slots__))
        order = np.lexsort((all_.cost, all_.used))
        order = order[np.append(True, np.diff(all_.used[order]) > 0)]
        return all_.take(order[np.argsort(all_.cost[order], kind="stable")])


class LimitedPaths:
    """Paths over segments within limits on units."""

    def __init__(
        self, segments: Segments, cost: Floats, units: Floats, limits: Ints, *, multipliers: Floats, to_go: Floats
    ) -> None:
        """Take M segments, sorted by where they begin.

        Args:
            segments: The segments.
            cost: [M], with multipliers; inf for what is not possible.
            units: [M], of its type that a segment takes.
            limits: [T].
            multipliers: [T], per unit, in the cost.
            to_go: [n + 1], the least cost of a path from each position to the last, with multipliers, without limits.
        """
        kept = np.flatnonzero(np.isfinite(cost))
        self._index, self._limits, self._multipliers, self._to_go = kept, limits, multipliers, to_go
        self._refund = float(multipliers @ limits)
        self._first, self._end, self._type = (x[kept] for x in (segments.first, segments.end, segments.type))
        self._cost, self._units = cost[kept], units[kept].astype(np.int64)
        self._rest = self._cost + to_go[self._end]
        self._starts = np.searchsorted(self._first, np.arange(len(to_go))).tolist()
        self._step = self._radix = np.zeros(0, np.int64)
        self._work = 0

    @classmethod
    def of(cls, segments: Segments, prices: SegmentPrices, to_go: Floats) -> "LimitedPaths":
        """Take segments with the prices and the cheapest rests [n + 1, Q + 1] that a relaxation found for them."""
        cost, units = prices.of(segments.demand, segments.type), prices.units(segments.demand)
        limits = prices.problem.max_units
        return cls(segments, cost, units, limits, multipliers=prices.multipliers, to_go=to_go.min(axis=1))

    def cheapest(self, price: Floats, bound: float, highest: float, effort: LabelEffort) -> LimitedPath:
        """Look for the cheapest path below ever higher ceilings.

        Args:
            price: [T], the least that a unit costs, without the multiplier.
            bound: A lower bound on the cost of every path within the limits, without multipliers; more than 0.
            highest: The last ceiling; what costs as much does not matter.
            effort: After its steps from a label over a segment the bound reached is all there is.
        """
        counts = (self._limits * price < highest) | (self._multipliers > 0)  # the limits of others do not bind
        self._radix = np.where(counts, self._limits + 1, 1)
        if prod(self._radix.tolist()) > _MOST_LABELS:
            return LimitedPath(bound)
        self._step = np.where(counts, np.cumprod(self._radix) // self._radix, 0)
        self._work, found, slack = effort.most_steps, LimitedPath(bound), effort.first_slack
        while found.bound < min(highest, found.cost) and self._work > 0:
            ceiling = min(highest, bound * (1 + slack))
            at_positions = self._labels(ceiling)
            if at_positions is not None:
                found = self._best(at_positions, ceiling)
            slack *= effort.growth
        return found

    def _labels(self, ceiling: float) -> list[_Labels | None] | None:
        """Return the labels [n + 1] of paths that may cost less than the ceiling; None where it is too much work."""
        last, none = len(self._to_go) - 1, np.array([-1])
        come: list[list[_Labels]] = [[] for _ in range(last + 1)]
        come[0].append(_Labels(np.zeros(1, np.int64), np.zeros(1), none, none))
        labels: list[_Labels | None] = [None] * (last + 1)
        for position, parts in enumerate(come):
            if not parts:
                continue
            labels[position] = here = _Labels.join(parts)
            if position == last:
                break
            row = slice(self._starts[position], self._starts[position + 1])
            counts = np.searchsorted(here.cost, ceiling + self._refund - self._rest[row])
            self._work -= int(counts.sum())
            if self._work <= 0:
                return None
            gone = self._gone(here, np.arange(row.start, row.stop), counts)
            end = self._end[gone.segment]
            order = np.argsort(end, kind="stable")
            ends, firsts = np.unique(end[order], return_index=True)
            for to, part in zip(ends.tolist(), np.split(order, firsts[1:]), strict=False):
                come[to].append(gone.take(part))
        return labels

    def _gone(self, here: _Labels, segments: Ints, counts: Ints) -> _Labels:
        """Go from the first so many labels over each segment, where the limits allow it."""
        segment = np.repeat(segments, counts)
        before = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts)
        used, type_, units = here.used[before], self._type[segment], self._units[segment]
        step = self._step[type_]
        fits = used // np.maximum(step, 1) % self._radix[type_] + units * (step > 0) < self._radix[type_]
        used, before, segment = (used + units * step)[fits], before[fits], segment[fits]
        return _Labels(used, here.cost[before] + self._cost[segment], segment, before)

    def _best(self, labels: list[_Labels | None], ceiling: float) -> LimitedPath:
        """Return the cheapest path of the labels at the last position; what is dropped costs the ceiling or more."""
        at_last = labels[-1]
        if at_last is None:
            return LimitedPath(ceiling)
        used = at_last.used[:, None] // np.maximum(self._step, 1) % self._radix
        cost = at_last.cost - used @ self._multipliers
        label = int(np.argmin(cost))
        least, steps, at = float(cost[label]), [], at_last
        while (segment := int(at.segment[label])) >= 0:
            steps.append(segment)
            label, at = int(at.before[label]), labels[self._first[segment]]
        return LimitedPath(min(ceiling, least), least, self._index[steps[::-1]])
