"""Branch and bound over the time of a batch: the proof behind the exact search.

Let tau be the time of a batch in the slowest stage; the price of a batch is tau times the price of all units. At a
fixed tau the cheapest plan is a cheapest path over segments (``paths.py``). Over a range (fast, slow] of tau the same
path, with every segment at the least it can cost in the range, is a *lower bound*, and segments on no path below the
best plan's value are dropped for the rest of the range::

    (0, slow]  bound < best: drop segments, split
      (0, mid]   bound >= best: closed, nothing better in here
      (mid, slow]  cheapest plan at slow costs v >= best: no better one above mid' = slow * best / v; go on below
        (mid, mid']  ...

Limits on units couple the segments. Fees per unit turn them into prices, and the bound stays a bound
(``lagrangian.py``); where they leave a gap, a search by labels closes it at a fixed tau (``label_setting.py``), or a
mixed-integer programme (``path_programme.py``).

All costs in here are in price per hour times seconds, per batch.

Left out: what is reported (``exact.py``).
"""

import heapq
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from heterps_compile.cost.evaluate import evaluate, slowest_batch_s, to_arrays
from heterps_compile.cost.problem import Floats, Placement, Problem
from heterps_compile.cost.segments import flatten_stages
from heterps_compile.passes.deadline import Deadline, TimeUpError
from heterps_compile.passes.placement.geometry import Chain, Segments

from .block_sweep import RangeSweep
from .label_setting import LimitedPaths
from .lagrangian import FeeBounds, FeeSolution
from .linked_chain import LinkedChain
from .march import March, TimeRange
from .path_programme import coupled_path
from .paths import ROUNDING, SegmentPrices
from .trivial_bounds import longest_s, trivial_bound

GAP = 1e-9
"""Relative: what is closer to the best than rounding can tell counts as not better."""

SWEPT = 100
"""Positions from which on a sweep over blocks comes first."""

MARCHED, SWEPT_S, BRIEFLY_S = 3000, 20.0, 3.0
"""Positions from which on a march follows that sweep; seconds, and a third of the time, after which it does at last;
the seconds where values pass to the next layer alone."""

MARCHED_AT_ONCE = 250
"""Positions from which on there is no sweep where the bounds of the march are the prices of plans."""

_MOST_LISTED = 600_000
_FIRST_RATIO = 0.8  # how far down the first split of an open range goes
_FEW_SEGMENTS, _NARROW = 3000, 0.98  # where a mixed-integer programme takes over from multipliers
_PROBED = (1.0, 0.5, 0.2)  # shares of the longest time, at which limits may bind
_MOST_LABELLED, _BEYOND = 3_000_000, 1.5  # steps of a search by labels; how far beyond the best plan it looks
_SHORT = 1e-4  # relative; where that search closes less, the programme does
_MOST_COLUMNS = 60_000  # of a mixed-integer programme that looks for a first plan


@dataclass(frozen=True, slots=True, order=True)
class _Range:
    """A range of tau whose plans cost at least ``bound``."""

    bound: float
    slow_s: float
    fast_s: float
    segments: Segments | None = field(compare=False)  # None for all of them
    fee: Floats = field(compare=False)


def marches_at_once(chain: Chain) -> bool:
    """Say whether a march alone is fastest: the chain is long, and hardly a bound of it below the price of a plan."""
    problem = chain.problem
    is_free = problem.min_stages <= 1 and problem.max_stages >= chain.length
    if chain.length < MARCHED_AT_ONCE or not chain.is_exact or chain.longest_span > 1 or not is_free:
        return False
    # units for each block on its cheapest type: with as many, limits hardly bind
    work_s = np.where(chain.usable_blocks(), np.diff(chain.compute_s), np.inf)
    cheapest = np.argmin(work_s * problem.price_per_hour[:, None], axis=0)
    needed_s = np.bincount(cheapest, work_s[cheapest, np.arange(chain.length)], problem.type_count)
    return bool(np.all(needed_s <= problem.max_units * min(slowest_batch_s(problem), 1e300)))


class RangeSearch:
    """The search, which can be stopped at any time.

    Attributes:
        best: Value of the best plan, inf until there is one.
        placement: That plan.
        bound: A proven lower bound on the value of every placement; inf where it is proven that none is feasible.
        evaluations: Placements evaluated.
        width: Relative; where the costs of segments are lower bounds, ranges narrower than that may stay open.
        is_hasty: Stop at the first of those, since its bound is the lowest.
        left: Where the costs of segments are lower bounds: the segments of ranges that could not be closed for it.
        loose: The plan that seems cheapest in them.
    """

    def __init__(
        self,
        chain: Chain | LinkedChain,
        deadline: Deadline,
        starts: Sequence[Placement] = (),
        gap: float = GAP,
    ) -> None:
        """Begin with some placements; stop where no plan can be better by more than ``gap``, relative."""
        problem = chain.problem
        self.problem, self.deadline = problem, deadline
        self._chain, self._gap = chain, gap
        self.best = np.inf
        self.placement: Placement | None = None
        self.bound = trivial_bound(problem)
        self.evaluations = 0
        self.width, self.is_hasty = 5e-3, False
        self.left: list[Segments | None] = []
        self.loose: Placement | None = None
        self._fees = FeeBounds(chain, deadline, self._try)
        for start in starts:
            self._try(start)

    def run(self) -> None:
        """Search until the best plan is proven best, or the time is up."""
        slow_s = min(slowest_batch_s(self.problem), longest_s(self.problem), self._most_s())
        no_fee = np.zeros(self.problem.type_count)
        node = _Range(self.bound, slow_s, 0.0, None, no_fee)
        open_, unclosed = [node], np.inf
        try:
            if isinstance(self._chain, Chain) and self._chain.length >= SWEPT and not self._is_coupled(node):
                open_ = self._begun(self._chain, node)
            while open_ and open_[0].bound < self.best * (1 - self._gap):
                node = heapq.heappop(open_)
                if not self._chain.is_exact and node.fast_s > node.slow_s * (1 - self.width):
                    unclosed = min(unclosed, node.bound)
                    self._leave(node)
                    if self.is_hasty:
                        break
                    continue
                for child in self._open(node):
                    heapq.heappush(open_, child)
            closed = self.best if self._gap <= GAP else self.best * (1 - self._gap)
            self.bound = min(closed, unclosed)
        except TimeUpError:
            self.bound = min([self.best, unclosed, node.bound, *(other.bound for other in open_)])

    def _is_coupled(self, whole: _Range) -> bool:
        """Say whether limits on units bind, on a chain whose segments can be listed: blocks know nothing of them."""
        if self._chain.segment_count > _MOST_LISTED:
            return False
        paid = self.problem.price_per_hour * self.problem.max_units  # by which no plan that matters is held
        times_s = [whole.slow_s * share for share in _PROBED if np.any(paid * whole.slow_s * share < self.best)]
        return any(self._fees.solve(None, time_s, time_s, whole.fee).is_coupled for time_s in times_s)

    def _leave(self, node: _Range) -> None:
        """Keep what a range that cannot be closed would need: its segments, and the path that is too cheap."""
        self.left.append(node.segments)
        if self.loose is None:  # the first is the cheapest
            path = self._fees.solve(node.segments, node.slow_s, node.fast_s, node.fee).path
            self.loose = None if path is None else self._chain.placement(path)

    def _begun(self, chain: Chain, whole: _Range) -> list[_Range]:
        """Begin with what does best on many positions; give what is left, as a heap."""
        if marches_at_once(chain):
            return sorted(self._marched(chain, [TimeRange(whole.bound, whole.slow_s, 0.0)], whole))
        left = self._open(whole) if np.isinf(self.best) else [whole]  # a sweep needs something to beat
        return self._swept(chain, whole) if np.isfinite(self.best) else left

    def _swept(self, chain: Chain, whole: _Range) -> list[_Range]:
        """Close what a sweep over cells of segments can, and a march after it; give what is left, as a heap."""
        is_long = chain.length >= MARCHED
        sweep = RangeSweep(chain, whole.slow_s, whole.bound, self.deadline)
        most_s = min(SWEPT_S, self.deadline.left_s() / 3, np.inf if chain.longest_span > 1 else BRIEFLY_S)
        swept = Deadline.after(most_s if is_long else None)
        try:
            while sweep.open and swept.left_s() > 0:
                sweep.step(self._ceiling(whole), self._try)
        except TimeUpError:  # which the search over the ranges still open notices at once
            left = [_Range(r.bound, r.slow_s, r.fast_s, None, whole.fee) for r in [*sweep.open, *sweep.left]]
        else:
            left = [_Range(r.bound, r.slow_s, r.fast_s, sweep.segments(r), whole.fee) for r in sweep.left]
            if sweep.open:
                left += self._marched(chain, [TimeRange(r.bound, r.slow_s, r.fast_s) for r in sweep.open], whole)
        heapq.heapify(left)
        return left

    def _marched(self, chain: Chain, ranges: Sequence[TimeRange], whole: _Range) -> list[_Range]:
        """Close what a march through times of a batch can; give what is left."""
        march = March(chain, ranges, self.deadline)
        with suppress(TimeUpError):  # as above
            while march.open:
                march.step(lambda: self._ceiling(whole), self._try)
        left = [*march.left, *((range_, None) for range_ in march.open)]
        return [_Range(r.bound, r.slow_s, r.fast_s, segments, whole.fee) for r, segments in left]

    def _most_s(self) -> float:
        """Return the tau above which even one unit of the cheapest type per stage costs more than the best plan."""
        least = float(self.problem.price_per_hour.min()) * self.problem.min_stages
        return self.best / least if least > 0 else np.inf

    def _open(self, node: _Range) -> list[_Range]:
        """Bound a range; give the parts of it that may hold a better plan."""
        solution = self._fees.raised(node.segments, node.slow_s, node.fast_s, node.fee, self._ceiling(node))
        bound = max(node.bound, solution.bound)
        if bound >= self._ceiling(node):
            return []
        segments, slow_s, fast_s = node.segments, node.slow_s, node.fast_s
        if np.isinf(self.best) and self._chain.segment_count > _MOST_COLUMNS:
            self._find_any(solution, slow_s)
        if np.isfinite(self.best) or self._chain.segment_count <= _MOST_LISTED:
            limit = self.best + float(solution.fee @ self.problem.max_units)
            segments = solution.graph.keep_below(solution.counts, solution.to_go, limit, _MOST_LISTED)
        if segments is not None:
            slow_s = self._march(segments, node, solution.fee)
        if slow_s <= fast_s:
            return []
        middle_s = slow_s * _FIRST_RATIO if fast_s == 0 else float(np.sqrt(slow_s * fast_s))
        return [
            _Range(bound, slow_s, middle_s, segments, solution.fee),
            _Range(bound, middle_s, fast_s, segments, solution.fee),
        ]

    def _find_any(self, solution: FeeSolution, slow_s: float) -> None:
        """Look for a first plan within the limits among the segments of cheap paths, ever less cheap ones.

        Raises:
            TimeUpError: where none is found: without any plan nothing can be dropped, and the search would not end.
        """
        for slack in (0.01, 0.05, 0.25, 1.0):
            limit = float(solution.to_go[0, 0]) * (1 + slack)
            segments = solution.graph.keep_below(solution.counts, solution.to_go, limit, _MOST_COLUMNS)
            if segments is not None:
                self._march_coupled(segments, slow_s)
            if np.isfinite(self.best):
                return
        raise TimeUpError

    def _march(self, segments: Segments, node: _Range, fee: Floats) -> float:
        """Solve at the slow end of a range; give the tau below which alone there may be better plans."""
        slow_s = node.slow_s
        solution = self._fees.solve(segments, slow_s, slow_s, fee)
        if solution.path is None:
            return 0.0
        left_s = self._left_s(slow_s, solution.bound)
        if not solution.is_coupled:
            return min(left_s, self._reached(solution.path, slow_s))
        left_s = min(left_s, self._march_labelled(segments, solution, slow_s))
        if left_s < slow_s * (1 - _SHORT):
            return left_s
        is_wide = len(segments) > _FEW_SEGMENTS and node.fast_s < slow_s * _NARROW
        if np.isfinite(self.best) and (is_wide or left_s < slow_s * _NARROW):
            return left_s
        return self._march_coupled(segments, slow_s)

    def _march_labelled(self, segments: Segments, solution: FeeSolution, slow_s: float) -> float:
        """Do the same with limits on units, by labels."""
        if solution.bound <= 0:  # free units: no ceiling lies a little above that
            return slow_s
        problem, fee = self.problem, solution.fee
        prices = SegmentPrices(slow_s, slow_s, problem.price_per_hour, problem.max_units, fee)
        paths = LimitedPaths(
            segments,
            prices.of(segments.demand, segments.type),
            segments.demand.units(slow_s * (1 + ROUNDING)),
            problem.max_units,
            fee=fee,
            to_go=solution.to_go.min(axis=1),
        )
        price = problem.price_per_hour * slow_s
        affordable = self._affordable(slow_s)
        highest = min(self.best * _BEYOND, affordable)
        found = paths.cheapest(price, solution.bound, highest, _MOST_LABELLED)
        if found.chosen is None:
            return self._left_s(slow_s, found.bound) if found.bound < affordable else 0.0
        path = segments.keep(found.chosen)
        is_best = found.cost <= found.bound and problem.min_stages <= len(path) <= problem.max_stages
        reached_s = self._taken(path, slow_s, is_best=is_best)
        return min(reached_s, self._left_s(slow_s, found.bound))

    def _march_coupled(self, segments: Segments, slow_s: float) -> float:
        """Do the same with limits on units, by a mixed-integer programme."""
        problem = self.problem
        no_fee = np.zeros(problem.type_count)
        prices = SegmentPrices(slow_s, slow_s, problem.price_per_hour, problem.max_units, no_fee)
        found = coupled_path(
            segments,
            prices.of(segments.demand, segments.type),
            segments.demand.units(slow_s * (1 + ROUNDING)),
            length=self._chain.length,
            limits=self.problem.max_units.astype(np.float64),
            least=self.problem.min_stages,
            most=self.problem.max_stages,
            deadline=self.deadline,
        )
        if np.isinf(found.bound):
            return 0.0
        reached_s = slow_s
        if found.chosen is not None:
            reached_s = self._taken(segments.keep(found.chosen), slow_s, is_best=found.is_optimal)
        self.deadline.check()
        return min(reached_s, self._left_s(slow_s, found.bound))

    def _taken(self, path: Segments, slow_s: float, *, is_best: bool) -> float:
        """Try the plan of a path; where no path at slow_s is cheaper, give the tau that it reaches."""
        self._try(self._chain.placement(path))
        return self._reached(path, slow_s) if is_best else slow_s

    def _left_s(self, slow_s: float, bound: float) -> float:
        """Return the tau below which a better plan must lie, where every plan at slow_s costs at least ``bound``."""
        return slow_s * min(1.0, self.best / bound) if bound > 0 else slow_s

    def _ceiling(self, node: _Range) -> float:
        """Return the bound at which a range is closed: no better plan in it, or none that the limits leave possible."""
        return min(self.best * (1 - self._gap), self._affordable(node.slow_s))

    def _affordable(self, slow_s: float) -> float:
        """Return what all units that there are cost at tau."""
        all_units = float(self.problem.price_per_hour @ self.problem.max_units)
        return all_units * slow_s * (1 + GAP) if all_units > 0 else np.inf

    def _reached(self, path: Segments, slow_s: float) -> float:
        """Return a tau just below the one that a path's stages reach with the units they need at slow_s.

        The plan costs no more than any between that and slow_s. Where the demands of segments are lower bounds, that
        holds only if its stages need no more units than its segments.
        """
        demand, units = path.demand, path.demand.units(slow_s * (1 + ROUNDING))
        if not self._chain.is_exact:
            stages = flatten_stages(self.problem, *to_arrays([self._chain.placement(path)]))
            demand, least = stages.work.demand(), units
            units = demand.units(slow_s * (1 + ROUNDING))
            if np.any(units > least):
                return slow_s
        return float(demand.time_s(units).max()) * (1 - 3 * ROUNDING)

    def _try(self, placement: Placement) -> None:
        self.evaluations += 1
        value = float(evaluate(self.problem, *to_arrays([placement])).values[0])
        value *= 3600 * self.problem.batch / 1e6
        if value < self.best:
            self.best, self.placement = value, placement


def per_million_samples(problem: Problem, value: float) -> float:
    """Turn a value of this search, in price per hour times seconds per batch, into the price of a million samples."""
    return value / 3600 / problem.batch * 1e6
