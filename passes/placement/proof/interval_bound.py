"""Bounds on the units of plans over a range of times of a batch, on chains too long to price every segment.

At one time tau of a batch a path over the longest segments (``longest_segments.py``) gives P(tau), a lower bound on the
price per hour of the units of every plan that takes no longer. P never rises with tau, so one P closes all times of a
range down to the best value over P::

    tau          fast            best / P(slow)              slow
                  |--------------------|----------------------|      price of a batch: tau P(tau)
                        left                   closed

Where the path uses more units than there are, multipliers make them dearer (``cutting_planes.py``), and what they come
to for all units is given back: P is then the bound of a Lagrangian, and still never rises with tau.

Where values pass to the next layer alone and nothing couples the stages, P is the price of a plan. Else P may stay
below the best plan: the range is narrowed until the segments on cheap paths in it can be listed.

Not covered: numbers of stages and memory (without them the bound is lower, and stays
a bound); which ranges are bounded (``time_search.py``).
"""

from collections.abc import Callable

import numpy as np

from heterps_compile.cost.problem import Bools, Floats, Ints, Placement
from heterps_compile.cost.segments import problem_tables
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain, Runs, Segments

from .cutting_planes import CuttingPlanes
from .effort import EFFORT, IntervalEffort
from .longest_segments import LongestSegments, ReplicaRanges, counted_up


class IntervalBound:
    """Bounds over ranges of the time of a batch, on one chain."""

    def __init__(
        self,
        chain: Chain,
        deadline: Deadline,
        consider: Callable[[Placement], None] = lambda _: None,
        effort: IntervalEffort = EFFORT.interval,
    ) -> None:
        """Take a chain; ``consider`` is called with the plan of every path."""
        self._chain, self._deadline, self._consider, self._effort = chain, deadline, consider, effort
        self.longest = LongestSegments(chain)
        self._least_work = float(chain.cheapest_work(chain.problem.price_per_hour)[-1])
        self._exact_units = np.full(chain.problem.type_count, effort.exact_units)
        self._limits = chain.problem.max_units.astype(np.float64)
        self._multipliers = np.zeros(chain.problem.type_count)  # of the last bound, to begin the next with
        # beyond these: types with the least and the most of numbers of replicas that are entries of their own
        self._parted = set[tuple[int, int, int]]()

    def least_price(self, fast_s: float, slow_s: float, ceiling: Callable[[], float]) -> float:
        """Bound the price per hour of the units of every plan in (fast_s, slow_s] that is better than the ceiling."""
        entries, ends = self.entries(fast_s, ceiling()), None
        planes, best = None, -np.inf
        for _ in range(self._effort.most_steps):
            self._deadline.check()
            if ends is None:
                entries = entries.singles(self._are_exact(entries))
                ends = self.longest.ends(entries, slow_s)
            prices = self.prices(entries)
            to_go = self.longest.to_go(ends, prices)
            least = float(to_go[0]) - float(self._multipliers @ self._limits)
            best = max(best, least)
            if best * slow_s >= ceiling() * self._effort.nearly:
                break
            first, end, chosen = self.longest.path(ends, prices, to_go)
            used = entries.take(chosen)
            self._consider(self._chain.placement(Runs(first, end, used.type)))
            if best * slow_s >= ceiling():
                break
            if self._learned(used):
                ends = planes = None
                continue
            excess = np.bincount(used.type, used.least, len(self._limits)) - self._limits
            if not np.any(excess > 0) and not np.any(self._multipliers * excess < 0):
                break
            if planes is None:
                span = self._chain.problem.price_per_hour + self._multipliers
                planes = CuttingPlanes(self._multipliers, least, span)
            planes.add(self._multipliers, least, excess)
            multipliers = planes.next()
            if multipliers is None:
                break
            self._multipliers = multipliers
        if planes is not None:
            self._multipliers = planes.best
        return best

    def prices(self, entries: ReplicaRanges) -> Floats:
        """Return [E], the least cost of the units of an entry, with multipliers."""
        return np.asarray(entries.least * (self._chain.problem.price_per_hour + self._multipliers)[entries.type])

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

    def entries(self, lowest_s: float, ceiling: float) -> ReplicaRanges:
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
                if least > 1 and self._least_work + price * lost_s >= ceiling:
                    break
                most = least if least <= self._exact_units[type_] else min(limit, int(least * self._effort.ratio))
                entries.append((type_, least, most))
                least = most + 1
        return ReplicaRanges(*np.array(entries, np.int64).reshape(-1, 3).T)

    def segments(self, fast_s: float, slow_s: float, ceiling: float, most: int) -> Segments | None:
        """List the segments of plans in (fast_s, slow_s] better than the ceiling; None if they exceed ``most``."""
        entries = self.entries(fast_s, ceiling)
        ends = self.longest.ends(entries, slow_s)
        prices = self.prices(entries)
        to_go = np.minimum.accumulate(self.longest.to_go(ends, prices))
        from_start = self.longest.from_start(ends, prices)
        limit = ceiling / fast_s * (1 + 1e-9) + float(self._multipliers @ self._limits)
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


def _first_below(falling: Floats, limits: Floats) -> Ints:
    """Return for every limit the first index at which values that never rise are below it."""
    return np.asarray(np.searchsorted(-falling, -limits, side="right"))
