"""The exact search on a long chain: march through the times of a batch.

tau is the time of a batch in the slowest stage, P(tau) a lower bound on the price of the units of every plan that takes
no longer, from cheapest paths over furthest segments. P never rises with tau, so one P closes a stretch of times::

    tau          t3 = t2 best / v2        t2 = t1 best / v1                  t1
    ... <----------------|--------------------------|-------------------------|    v = tau P(tau)
                          no plan in here is better   nor in here: P(tau) >= P(t1), and tau P(t1) >= best

The stretches are long where plans are dear, short near the best one. Where values pass to the next layer alone and
nothing couples the stages, P is the price of a plan, which becomes the best one where it is better, and every stretch
ends. Else the bound may stay below the best plan: then a narrow range is put aside, and halved when no other is open;
in the end the segments on cheap paths in it are listed.

Left out: limits on units that stages share, numbers of stages, memory (without them the bound is lower, and stays a
bound); the search over listed segments (``range_search.py``).
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from heterps_compile.cost.problem import Bools, Floats, Ints, Placement
from heterps_compile.cost.segments import problem_tables
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain, Runs, Segments

from .effort import EFFORT, MarchEffort
from .longest_segments import LastEnds, LongestSegments, ReplicaRanges, counted_up


@dataclass(frozen=True, slots=True, order=True)
class TimeRange:
    """A range (fast_s, slow_s] of tau whose plans cost at least ``bound``.

    Attributes:
        least_price: What the units of every plan in it cost at least; None where that is not known.
        is_aside: Whether it was put aside.
        is_barred: Whether the bound at the slow end allows better plans than any known.
        entries: That better plans may use; None where that is not known.
    """

    bound: float
    slow_s: float
    fast_s: float
    least_price: float | None = field(compare=False, default=None)
    is_aside: bool = field(compare=False, default=False)
    is_barred: bool = field(compare=False, default=False)
    entries: ReplicaRanges | None = field(compare=False, default=None)


class March:
    """The march, which can be stopped between steps.

    Attributes:
        left: Ranges that are left to the search over segments, with those that may matter; None for all.
    """

    def __init__(
        self, chain: Chain, ranges: Sequence[TimeRange], deadline: Deadline, effort: MarchEffort = EFFORT.march
    ) -> None:
        """Begin with ranges of tau."""
        self._chain, self._deadline, self._effort = chain, deadline, effort
        self._longest = LongestSegments(chain)
        self._total = float(chain.cheapest_work(chain.problem.price_per_hour)[-1])
        # where segments bound what stages cost and do not tell it, narrower ranges are as hard to close
        self._narrow, self._point = (
            (effort.narrow, effort.point) if chain.is_exact else (effort.narrow_of_bounds, effort.narrow_of_bounds)
        )
        # where values skip layers, P may be of no plan, however narrow the range
        self._short = effort.short if chain.longest_span > 1 else 0.0
        self._fresh = sorted(ranges, key=lambda range_: range_.slow_s)
        self._is_surveying, self._begun = True, list[TimeRange]()
        if effort.surveyed == 0:
            self._fresh, self._begun = self._begun, self._fresh
        self._aside: list[TimeRange] = []  # a heap
        self.left: list[tuple[TimeRange, Segments | None]] = []
        self._listed_width, self._held = 1.0, 0
        self._exact_units = np.full(chain.problem.type_count, effort.exact_units)
        # beyond these: types with the least and the most of numbers of replicas that are entries of their own
        self._parted = set[tuple[int, int, int]]()

    @property
    def open(self) -> list[TimeRange]:
        """Return the ranges that are not closed."""
        return self._fresh + self._begun + self._aside

    def step(self, ceiling: Callable[[], float], consider: Callable[[Placement], None]) -> None:
        """Take a range, and keep what is not closed of it.

        Every range is taken once, for a bound, from the slowest; then they are marched through one by one, from the one
        of the lowest bound; then those put aside are taken, the lowest bound first.

        Args:
            ceiling: Asked for the value that closes a range.
            consider: Told of plans that may be good, which may lower that value.
        """
        self._deadline.check()
        parts = self._surveyed(self._fresh.pop(), ceiling, consider) if self._fresh else self._taken(ceiling, consider)
        for part in parts:
            if part.bound >= ceiling() or part.slow_s <= part.fast_s:
                continue
            if not part.is_aside:
                self._begun.append(part)
                continue
            segments, width = self._listed(part, ceiling()), 1 - part.fast_s / part.slow_s
            if segments is not None or width < self._point:
                self.left.append((part, segments))
                self._held += 0 if segments is None else len(segments)
            else:
                heapq.heappush(self._aside, part)
        if self._is_surveying and not self._fresh:
            self._is_surveying = False
            self._begun.sort(reverse=True)

    def _surveyed(
        self, range_: TimeRange, ceiling: Callable[[], float], consider: Callable[[Placement], None]
    ) -> list[TimeRange]:
        """Bound the slow end of a range that is new, and leave the rest of it for another survey."""
        if range_.bound >= ceiling():
            return []
        point = replace(range_, fast_s=max(range_.fast_s, self._effort.stride * range_.slow_s))
        parts = self._marched(point, ceiling, consider)
        next_s = max(
            range_.fast_s, min(self._effort.surveyed * range_.slow_s, parts[0].slow_s if parts else point.fast_s)
        )
        if next_s > range_.fast_s and (parts or not self._is_impossible(range_.slow_s)):
            self._fresh.append(replace(range_, slow_s=next_s))
        return [replace(part, fast_s=max(part.fast_s, next_s), entries=None) for part in parts]

    def _taken(self, ceiling: Callable[[], float], consider: Callable[[Placement], None]) -> list[TimeRange]:
        """Bound the next range, or part it."""
        is_aside = not self._begun
        range_ = heapq.heappop(self._aside) if is_aside else self._begun.pop()
        if range_.bound >= ceiling():
            return []
        if is_aside and range_.least_price is not None:
            return _halved(range_)
        return self._marched(range_, ceiling, consider)

    def _marched(
        self, range_: TimeRange, ceiling: Callable[[], float], consider: Callable[[Placement], None]
    ) -> list[TimeRange]:
        """Bound a range at its slow end."""
        slow_s, fast_s, before = range_.slow_s, range_.fast_s, ceiling()
        least, entries = self._least_price(range_, before, consider)
        if np.isinf(least):
            return []
        reached_s = max(fast_s, slow_s * min(1.0, ceiling() / (least * slow_s))) if least > 0 else slow_s
        is_barred = least * slow_s < ceiling()

        def part(slow_s: float, fast_s: float, is_aside: bool) -> TimeRange:
            bound, is_aside = max(range_.bound, fast_s * least), is_aside or range_.is_aside
            return TimeRange(bound, slow_s, fast_s, least, is_aside, is_barred, entries)

        if not is_barred and reached_s < slow_s * (1 - self._short):
            return [part(reached_s, fast_s, False)]
        effort = self._effort
        width = effort.barred if is_barred else effort.improved if ceiling() < before else effort.tiny
        short_s = max(fast_s, reached_s * (1 - width))
        rest = replace(part(short_s, fast_s, False), least_price=None, is_barred=False)
        return [part(reached_s, short_s, True), rest]

    def _least_price(
        self, range_: TimeRange, ceiling: float, consider: Callable[[Placement], None]
    ) -> tuple[float, ReplicaRanges | None]:
        """Bound the price of the units of every plan in a range that is better than the ceiling.

        Returns:
            The bound; entries that such plans may use, where they are known.
        """
        slow_s, entries = range_.slow_s, range_.entries
        is_half = range_.is_aside and range_.least_price is None
        tried = self._entries(range_.fast_s, ceiling) if entries is None else entries
        if is_half:
            tried = tried.halves()
        while True:
            self._deadline.check()
            tried = tried.singles(self._are_exact(tried))
            ends = self._longest.ends(tried, slow_s)
            to_go = self._longest.to_go(tried, ends)
            least = float(to_go[0])
            if least * slow_s >= ceiling * self._effort.nearly:
                break
            first, end, chosen = self._longest.path(tried, ends, to_go)
            used = tried.take(chosen)
            consider(self._chain.placement(Runs(first, end, used.type)))
            if least * slow_s >= ceiling or not self._learned(used):
                break
        if is_half:
            entries = self._useful(tried, ends, to_go, ceiling / range_.fast_s)
        return least, entries

    def _learned(self, used: ReplicaRanges) -> bool:
        """Make entries of a path that is too cheap entries of their own; say whether there were any."""
        together = used.most - used.least
        wide = used.take(np.flatnonzero((together > 0) & (together < self._effort.most_together)))
        few = wide.take(np.flatnonzero(wide.most <= self._effort.most_exact))
        np.maximum.at(self._exact_units, few.type, few.most)
        many = wide.take(np.flatnonzero(wide.most > self._effort.most_exact))
        self._parted.update(zip(many.type.tolist(), many.least.tolist(), many.most.tolist(), strict=True))
        return len(wide) > 0

    def _are_exact(self, entries: ReplicaRanges) -> Bools:
        """Say which entries are to be parted into single numbers of replicas."""
        exact = entries.most <= self._exact_units[entries.type]
        for type_, least, most in self._parted:
            exact |= (entries.type == type_) & (entries.least >= least) & (entries.most <= most)
        return np.asarray(exact)

    def _useful(self, entries: ReplicaRanges, ends: LastEnds, to_go: Floats, limit: float) -> ReplicaRanges:
        """Return the entries on paths cheaper than the limit."""
        return entries.take(np.flatnonzero(self._longest.through(entries, ends, to_go) < limit * (1 + 1e-9)))

    def _is_impossible(self, slow_s: float) -> bool:
        """Say whether not even all units for every stage allow a plan."""
        most = self._chain.problem.max_units.astype(np.int64)
        types = np.flatnonzero(most)
        alone, several = np.ones(len(types), np.int64), np.flatnonzero(most[types] > 1)
        every = ReplicaRanges(
            np.concatenate([types, types[several]]),
            np.concatenate([alone, 2 * alone[several]]),
            np.concatenate([alone, most[types][several]]),
        )
        every = every.take(np.argsort(every.type, kind="stable"))
        return bool(np.isinf(self._longest.to_go(every, self._longest.ends(every, slow_s))[0]))

    def _entries(self, lowest_s: float, ceiling: float) -> ReplicaRanges:
        """Return the replica counts that a plan better than the ceiling may have at ``lowest_s`` or more.

        A segment with k replicas has tau / (1 - alpha + alpha / k) of computation at most, so k tau less that is lost;
        alpha is the largest of any layer's.
        """
        problem = self._chain.problem
        largest = np.where(problem_tables(problem).usable, problem.alpha, 0.0).max(axis=0)
        entries: list[tuple[int, int, int]] = []
        for type_, (price, alpha) in enumerate(zip(problem.price_per_hour, largest, strict=True)):
            least, limit = 1, int(problem.max_units[type_])
            while least <= limit:
                lost_s = lowest_s * least * (1 - 1 / ((1 - alpha) * least + alpha))
                if least > 1 and self._total + price * lost_s >= ceiling:
                    break
                most = least if least <= self._exact_units[type_] else min(limit, int(least * self._effort.ratio))
                entries.append((type_, least, most))
                least = most + 1
        return ReplicaRanges(*np.array(entries, np.int64).reshape(-1, 3).T)

    def _listed(self, range_: TimeRange, ceiling: float) -> Segments | None:
        """List the segments of a range that is narrow, or barred and no wider than others that had few; None if not."""
        width = 1 - range_.fast_s / range_.slow_s
        if range_.least_price is None:
            return None
        room = self._effort.most_held - self._held
        if width < self._narrow:
            return self._segments(range_, ceiling, min(self._effort.most_listed, room))
        if not range_.is_barred or width > self._listed_width:
            return None
        segments = self._segments(range_, ceiling, min(self._effort.few, room))
        self._listed_width = width / 2 if segments is None else max(2 * width, self._listed_width)
        return segments

    def _segments(self, range_: TimeRange, ceiling: float, most: int) -> Segments | None:
        """List the segments that may be on the path of a plan of a range better than the ceiling; None for too many."""
        entries = self._entries(range_.fast_s, ceiling) if range_.entries is None else range_.entries
        ends = self._longest.ends(entries, range_.slow_s)
        to_go = np.minimum.accumulate(self._longest.to_go(entries, ends))
        from_start = self._longest.from_start(entries, ends)
        limit, prices = ceiling / range_.fast_s * (1 + 1e-9), self._longest.prices(entries)
        shortest = np.tile(np.arange(ends.shape[1]), (len(entries), 1))
        same = np.flatnonzero(np.diff(entries.type) == 0)
        shortest[same + 1] = ends[same]  # with fewer replicas
        begin = np.maximum(shortest + 1, _first_below(to_go, limit - prices[:, None] - from_start[:-1]))
        counts = np.maximum(ends + 1 - begin, 0)
        if counts.sum() > most:
            return None
        which = np.repeat(np.arange(counts.size), counts.ravel())
        entry, first = np.divmod(which, ends.shape[1])
        return self._chain.segments_at(first, counted_up(counts.ravel()) + begin.ravel()[which], entries.type[entry])


def _halved(range_: TimeRange) -> list[TimeRange]:
    middle_s = float(np.sqrt(range_.slow_s * range_.fast_s))
    least = range_.least_price or 0.0
    slower = replace(range_, fast_s=middle_s, bound=max(range_.bound, middle_s * least))
    return [slower, replace(range_, slow_s=middle_s, least_price=None, is_barred=False)]


def _first_below(falling: Floats, limits: Floats) -> Ints:
    """Return for every limit the first index at which values that never rise are below it."""
    return np.asarray(np.searchsorted(-falling, -limits, side="right"))
