"""Branch and bound over the time of a batch: the proof behind the exact search, for every objective.

Let tau be the time of a batch in the slowest stage. At a fixed tau every segment has its fewest units, and a plan is a
cheapest path over segments (``paths.py``). Over a range (fast, slow] of tau the same path, with every segment at the
least it can cost in the range, is a *lower bound*, and segments on no path below the best plan's value are dropped for
the rest of the range::

    (0, slow]  bound < best: drop segments, split
      (0, mid]   bound >= best: closed, nothing better in here
      (mid, slow]  cheapest plan at slow costs v >= best: no better one above mid' = slow * best / v; go on below
        (mid, mid']  ...

What a range is worth depends on the objective::

    cost                  tau times the price of all units: as drawn
    throughput, max-load  tau itself, so the bound is the fast end; a range is empty if paths at its slow end cost more
                          than the budget, or than all units
    price, latency        the range is one time, the floor's: no plan needs fewer units to be faster

Limits on units, and the budget of ``latency``, couple the segments. Lagrange multipliers turn them into prices, and the
bound stays a bound (``lagrangian.py``); if they leave a gap, a search by labels closes it at a fixed tau
(``label_setting.py``), or a mixed-integer programme (``path_programme.py``). On long chains ranges are bounded without
pricing every segment first (``interval_bound.py``).

Not covered: what is reported (``exact.py``).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heterps_compile.cost.chosen_units import BUDGET_TOLERANCE
from heterps_compile.cost.evaluate import slowest_batch_s, to_arrays
from heterps_compile.cost.finders import PROOF
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.cost.segments import flatten_stages
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain, Segments
from heterps_compile.passes.placement.incumbent import Incumbent
from heterps_compile.passes.placement.lattice import Lattice

from .best_first import best_first
from .effort import EFFORT, Effort
from .interval_bound import IntervalBound
from .label_setting import LimitedPaths
from .lagrangian import Lagrangian, Relaxation
from .linked_chain import LinkedChain
from .longest_segments import LongestPaths
from .path_programme import Coupling, coupled_path
from .paths import ROUNDING, SegmentPrices
from .time_range import TimeRange
from .trivial_bounds import GAP, batch_price, longest_s, per_million_samples, trivial_bound

_REMEMBERED = 256  # placements that are not evaluated once more
_MUCH = 100.0  # times what all units cost: if limits alone count, prices count that little


class TimeSearch(ABC):
    """The search, which can be stopped at any time; values are the objective's.

    Attributes:
        bound: A proven lower bound on the value of every placement; inf if it is proven that none is feasible.
        evaluations: Placements evaluated.
        left: The ranges that stay open, the lowest bound first.
    """

    def __init__(
        self,
        chain: Chain | LinkedChain | Lattice,
        deadline: Deadline,
        starts: Sequence[Placement] = (),
        gap: float = GAP,
        effort: Effort = EFFORT,
        *,
        incumbent: Incumbent | None = None,
        width: float | None = None,
        is_hasty: bool = False,
        tells: bool = False,
    ) -> None:
        """Begin with some placements.

        Args:
            chain: The segments.
            deadline: When to stop.
            starts: Placements to begin from.
            gap: Relative; stop if no plan can be better by more.
            effort: How hard to try.
            incumbent: The best plan that searches next to this one know.
            width: Relative; narrower ranges may stay open, where segments bound the cost of stages.
            is_hasty: Stop at the first range that stays open.
            tells: Whether bounds hold for all that the incumbent is of, and are reported.
        """
        self.problem, self.deadline = chain.problem, deadline
        self._incumbent = Incumbent(self.problem) if incumbent is None else incumbent
        self._chain, self._gap, self._is_hasty, self._tells = chain, gap, is_hasty, tells
        self._whole_effort = effort
        self._effort, self._labels, self._interval_effort = effort.ranges, effort.labels, effort.interval
        self._width = effort.ranges.width if width is None else width
        self.bound, self.evaluations = trivial_bound(self.problem), 0
        self.left: list[TimeRange] = []
        self._tried: set[Placement] = set()
        self._lagrangian, self._counted = Lagrangian(chain, deadline, self._try), 0
        self._none = self._lagrangian.none
        for start in starts:
            self._try(start)

    @property
    def best(self) -> float:
        """Return the value of the best plan that any search of the problem knows, inf until there is one."""
        return self._incumbent.value

    @property
    def placement(self) -> Placement | None:
        """Return that plan."""
        return self._incumbent.placement

    @property
    def _best(self) -> float:
        """Return the cost of its path."""
        return self._path_cost(self._incumbent.value)

    def run(self, most: float = np.inf) -> None:
        """Search until the best plan is proven best, or the time is up, or what is left open cannot be closed.

        Args:
            most: Value of the worst plan that is good enough; inf for the optimum. The search ends at the first such
                plan, or once there is none: the bound is ``most`` then.
        """
        slow_s = min(slowest_batch_s(self.problem), longest_s(self.problem))
        found = best_first(
            self._first(slow_s),
            self._branch,
            lambda: min(self._best * (1 - self._gap), most),
            self._report,
            is_over=lambda: (self._is_hasty and len(self.left) > 0) or self.best <= most < np.inf,
            note_late=self._incumbent.note_late,
        )
        closed = min(self._best * (1 - self._gap), most)
        is_proven = found >= closed and self._gap <= GAP and np.isinf(most)
        self.bound = self.best if is_proven else self._value(min(found, closed))

    @abstractmethod
    def _first(self, slow_s: float) -> TimeRange:
        """Return the range of all plans."""

    @abstractmethod
    def _branch(self, node: TimeRange) -> Sequence[TimeRange] | None:
        """Close a range, or return the parts of it that may hold a better plan; None if it stays open."""

    def _value(self, path_cost: float) -> float:
        """Turn the cost of a path that is a plan into its value."""
        return path_cost

    def _report(self, bound: float) -> None:
        if self._tells:
            self._incumbent.raise_bound(self._value(bound))

    def _affordable(self, slow_s: float) -> float:
        """Return the cost of all units in a plan at tau."""
        unit_price = SegmentPrices.at(self.problem, slow_s).of_unit
        all_units = float(unit_price @ self.problem.max_units)
        return all_units * (1 + GAP) if all_units > 0 else np.inf

    def _kept(self, relaxed: Relaxation, below: float, otherwise: Segments | None = None) -> Segments | None:
        """Return the segments on paths within the limits that cost less than a value; ``otherwise`` if too many."""
        most, limit = self._effort.most_listed, below * (1 + GAP) + relaxed.refund
        if np.isinf(limit) and self._chain.segment_count > most:
            return otherwise
        kept = relaxed.graph.keep_below(relaxed.counts, relaxed.to_go, limit, most)
        return otherwise if kept is None else kept

    def _may_exist(self, relaxed: Relaxation) -> bool:
        """Look for a first plan within the limits; say whether there may be one.

        The segments of cheap paths are tried first, then a search for the fastest plan, down to the floor's time.
        """
        for segments in relaxed.cheap_lists(self._effort.most_columns):
            self._programme(segments, relaxed.prices.slow_s, self._effort.programme_s)
            if np.isfinite(self._best):
                return True
        if not isinstance(self._chain, Chain) or np.isfinite(self.problem.budget_per_hour):
            return True
        fastest = replace(self.problem, objective="throughput", min_throughput=0.0)
        search = FastestSearch(Chain(fastest, self._chain.borders), self.deadline, effort=self._whole_effort)
        most_s = slowest_batch_s(self.problem) * (1 + ROUNDING)
        search.run(most_s)
        if search.placement is not None:
            self._try(search.placement)
        self.deadline.check()
        return np.isfinite(self._best) or search.bound < most_s

    def _labelled(self, segments: Segments, point: Relaxation, beyond: float) -> tuple[float, Segments | None]:
        """Bound the cost of paths within the limits on units at one time, by labels; try the cheapest path.

        Args:
            segments: That may be on it.
            point: Of that time.
            beyond: How far beyond the best plan to look, relative.

        Returns:
            The bound, and that path if it is proven cheapest.
        """
        slow_s, problem = point.prices.slow_s, self.problem
        if point.bound <= 0:  # free units: no ceiling lies a little above that
            return point.bound, None
        paths, affordable = LimitedPaths.of(segments, point.prices, point.to_go), self._affordable(slow_s)
        price = SegmentPrices.at(problem, slow_s).of_unit
        found = paths.cheapest(price, point.bound, min(self._best * beyond, affordable), self._labels)
        self.deadline.check()
        if found.chosen is None:
            return np.inf if found.bound >= affordable else found.bound, None
        path = segments.keep(found.chosen)
        self._try(self._chain.placement(path))
        is_cheapest = found.cost <= found.bound and problem.min_stages <= len(path) <= problem.max_stages
        return found.bound, path if is_cheapest else None

    def _programme(
        self, segments: Segments, slow_s: float, most_s: float = np.inf, enough: float = -np.inf
    ) -> tuple[float, Segments | None]:
        """Bound the cost of paths within all limits at one time, by a mixed-integer programme; try the one it finds.

        Args:
            segments: That may be on it.
            slow_s: The time.
            most_s: Seconds that it may take at most.
            enough: Stop at a path that costs this or less.

        Returns:
            The bound, inf if there is no path; and the path if it is proven cheapest.
        """
        prices = SegmentPrices.at(self.problem, slow_s)
        cost, units = prices.of(segments.demand, segments.type), prices.units(segments.demand)
        coupling = Coupling.of(self.problem, self._chain.length)
        found = coupled_path(segments, cost, units, coupling, self.deadline, most_s=most_s, enough=enough)
        path = None if found.chosen is None else segments.keep(found.chosen)
        if path is not None:
            self._try(self._chain.placement(path))
        self.deadline.check()
        return found.bound, path if found.is_optimal else None

    def _try(self, placement: Placement) -> None:
        if placement not in self._tried:  # ranges of a time have the same cheapest paths again and again
            if len(self._tried) >= _REMEMBERED:
                self._tried.clear()
            self._tried.add(placement)
            self.evaluations += 1
            self._incumbent.offer(placement, self._chain.value(placement), PROOF)
        priced = self._lagrangian.priced - self._counted
        self._counted += priced
        self._incumbent.exchange(priced or self._chain.length * self.problem.type_count)

    def _path_cost(self, value: float) -> float:
        """Turn the value of a plan into the cost of its path."""
        return value


class FloorSearch(TimeSearch):
    """For ``price`` and ``latency``: the cheapest path at the floor's time."""

    def _first(self, slow_s: float) -> TimeRange:
        return TimeRange(self.bound, slow_s, slow_s, None, self._none)

    def _branch(self, node: TimeRange) -> Sequence[TimeRange] | None:
        if node.is_tried:
            self.left.append(node)
            return None
        slow_s, effort, is_price = node.slow_s, self._effort, self.problem.objective == "price"
        affordable = self._affordable(slow_s) if is_price else np.inf
        begin = self._lagrangian.solve(None, slow_s, slow_s, node.multipliers)
        relaxed = self._lagrangian.raised(begin, None, lambda: min(self._best, affordable), effort.steps_first)
        if begin.path is None or relaxed.path is None or relaxed.bound > affordable:
            return []
        bound, loose = max(node.bound, relaxed.bound), self._chain.placement(begin.path)
        segments = None
        if relaxed.is_coupled or not self._chain.is_exact:
            if np.isinf(self._best) and not self._may_exist(relaxed):
                return []
            segments = self._kept(relaxed, self._best)
        if segments is not None and relaxed.is_coupled:
            if is_price:
                labelled, path = self._labelled(segments, relaxed, 1.0)
                bound = max(bound, labelled)
            if len(segments) <= effort.most_columns and bound < self._best * (1 - GAP):
                closed, path = self._programme(segments, slow_s)
                bound = max(bound, closed)
                loose = loose if path is None else self._chain.placement(path)
        return [replace(node, bound=bound, segments=segments, is_tried=True, loose=loose)]


class FastestSearch(TimeSearch):
    """For ``throughput`` and ``max-load``: the least time at which a path keeps the limits and the budget."""

    _failed_s = 0.0  # the longest time at which a programme found no plan; it would find none at a shorter one

    def _first(self, slow_s: float) -> TimeRange:
        chain, effort = self._chain, self._effort
        if isinstance(chain, Chain) and chain.segment_count > effort.most_columns:
            self._lagrangian.longest = LongestPaths.of(chain, effort.most_ends)
        much = np.append(_MUCH * self._most_spent / np.maximum(self.problem.max_units, 1), 0.0)
        return TimeRange(self.bound, self.bound, slow_s, None, much)

    def _branch(self, node: TimeRange) -> Sequence[TimeRange] | None:
        slow_s = min(node.slow_s, self._best * (1 - GAP))
        is_reached, is_narrow = node.slow_s > slow_s, node.fast_s >= slow_s * (1 - self._effort.near)
        if node.fast_s >= slow_s:
            return []
        if node.is_tried and is_narrow and not is_reached:
            self.left.append(node)
            return None
        if not is_narrow and (is_reached or node.is_tried):
            middle_s = (node.fast_s + slow_s) / 2
            faster, slower = node.split(middle_s)
            return [faster, replace(slower, bound=middle_s)]
        relaxed, enough = self._relaxed(node, slow_s), self._most_spent * (1 + 2 * BUDGET_TOLERANCE)
        if relaxed.path is None or relaxed.bound > enough:
            return []
        longest, segments = self._lagrangian.longest, None
        if longest is None:
            segments = self._kept(relaxed, enough, node.segments)
        if self._best > slow_s > self._failed_s:
            is_listed = segments is not None and len(segments) <= self._effort.most_columns
            bound = relaxed.bound
            if longest is not None:
                bound = self._overlapping(longest, relaxed, enough)
            elif segments is not None and is_listed:
                bound, _ = self._programme(segments, slow_s, self._effort.programme_s, self._most_spent)
            if bound > enough:
                return []
            if self._best > slow_s and (longest is not None or is_listed):
                self._failed_s = slow_s
        node = replace(node, segments=segments, multipliers=relaxed.multipliers)
        return [replace(node, slow_s=min(slow_s, self._best), is_tried=self._best > slow_s)]

    def _overlapping(self, longest: LongestPaths, relaxed: Relaxation, enough: float) -> float:
        """Bound the price of the units of plans at one time, by a programme over the longest segments."""
        slow_s, effort = relaxed.prices.slow_s, self._effort
        limit, coupling = enough * (1 + GAP) + relaxed.refund, Coupling.of(self.problem, self._chain.length)
        runs, units, below = longest.maximal_below(slow_s, relaxed.prices.of_unit, limit, effort.most_maximal)
        cost, most_s = units * SegmentPrices.at(self.problem, slow_s).of_unit[runs.type], effort.programme_s
        found = coupled_path(
            runs, cost, units, coupling, self.deadline, most_s=most_s, enough=self._most_spent, may_overlap=True
        )
        if found.chosen is not None:
            self._try(self._chain.placement(longest.parted(runs.keep(found.chosen))))
        self.deadline.check()
        return max(relaxed.bound, min(found.bound, below - relaxed.refund))

    def _relaxed(self, node: TimeRange, slow_s: float) -> Relaxation:
        """Bound the price of the units of plans at one time, until it is too high or a plan is found."""
        begin = self._lagrangian.solve(node.segments, slow_s, slow_s, self._none)
        if begin.path is None or not begin.is_coupled:
            return begin
        if np.any(node.multipliers > 0):
            begin = self._lagrangian.solve(node.segments, slow_s, slow_s, node.multipliers)
        steps = self._effort.steps_first if node.segments is None else self._effort.steps
        goal = self._most_spent * (1 + 2 * BUDGET_TOLERANCE)
        return self._lagrangian.raised(begin, node.segments, lambda: goal if self._best > slow_s else -np.inf, steps)

    @property
    def _most_spent(self) -> float:
        """Return the cost of a path that no plan exceeds: the budget, or all units that there are."""
        unit_price = SegmentPrices.at(self.problem, 1.0).of_unit
        return min(self.problem.budget_per_hour, float(unit_price @ self.problem.max_units))


class CostSearch(TimeSearch):
    """For ``cost``: tau times the price of the units; costs of paths are in price per hour times seconds."""

    _interval: IntervalBound | None = None
    _short = 0.0

    def _value(self, path_cost: float) -> float:
        return per_million_samples(self.problem, path_cost)

    def _path_cost(self, value: float) -> float:
        return batch_price(self.problem, value)

    def _first(self, slow_s: float) -> TimeRange:
        least, effort = float(self.problem.price_per_hour.min()) * self.problem.min_stages, self._interval_effort
        if least > 0:  # above this tau even one unit of the cheapest type per stage costs more than the best plan
            slow_s = min(slow_s, self._best / least)
        if isinstance(self._chain, Chain):
            is_tight = self._chain.longest_span <= 1
            self._short = 0.0 if is_tight else effort.short
            if self._chain.length >= (effort.least_positions if is_tight else effort.least_skipping):
                self._interval = IntervalBound(self._chain, self.deadline, self._try, effort)
        return TimeRange(self._path_cost(self.bound), 0.0, slow_s, None, self._none)

    def _branch(self, node: TimeRange) -> Sequence[TimeRange] | None:
        if node.is_tried:
            self.left.append(node)
            return None
        # without a plan a bound has nothing to beat
        if self._interval is None or node.segments is not None or np.isinf(self._best):
            return self._opened(node)
        slow_s, fast_s, effort = node.slow_s, node.fast_s, self._interval_effort
        least = self._interval.least_price(fast_s, slow_s, lambda: self._ceiling(slow_s))
        ceiling = self._ceiling(slow_s)
        if np.isinf(least) or fast_s * least >= ceiling:
            return []
        reached_s = slow_s * min(1.0, ceiling / (least * slow_s)) if least > 0 else slow_s
        node = replace(node, slow_s=reached_s, bound=max(node.bound, fast_s * least))
        if fast_s == 0:
            faster, slower = self._split(node)
            return [faster, replace(slower, bound=max(node.bound, slower.fast_s * least))]
        if reached_s < slow_s * (1 - self._short):
            return [node]
        segments = self._interval.segments(fast_s, reached_s, self._ceiling(slow_s), effort.most_listed)
        if segments is not None or node.is_within(effort.point):
            return self._opened(replace(node, segments=segments))
        return self._split(node)

    def _opened(self, node: TimeRange) -> Sequence[TimeRange]:
        """Bound a range over its segments, and close it as far as plans at its slow end allow."""
        slow_s, fast_s, effort = node.slow_s, node.fast_s, self._effort
        goal = self._ceiling(slow_s)  # one while the bound is raised: a plan found meanwhile lowers it
        begin = self._lagrangian.solve(node.segments, slow_s, fast_s, node.multipliers)
        steps = effort.steps_first if fast_s == 0 else effort.steps
        relaxed = self._lagrangian.raised(begin, node.segments, lambda: goal, steps)
        node = replace(node, bound=max(node.bound, relaxed.bound), multipliers=relaxed.multipliers)
        if relaxed.path is None or node.bound >= self._ceiling(slow_s):
            return []
        if np.isinf(self._best) and self._chain.segment_count > effort.most_columns:
            if not self._may_exist(relaxed):
                return []
            if np.isinf(self._best):  # without any plan nothing can be dropped, and the search would not end
                return [replace(node, is_tried=True)]
        segments = self._kept(relaxed, self._best, node.segments)
        reached_s = slow_s if segments is None else self._reached_s(segments, replace(node, segments=segments))
        if reached_s <= fast_s:
            return []
        node = replace(node, segments=segments, slow_s=reached_s)
        if not self._chain.is_exact and node.is_within(self._width):
            return [replace(node, is_tried=True, loose=self._chain.placement(relaxed.path))]
        return self._split(node)

    def _split(self, node: TimeRange) -> Sequence[TimeRange]:
        slow_s, fast_s = node.slow_s, node.fast_s
        return node.split(slow_s * self._effort.first_ratio if fast_s == 0 else float(np.sqrt(slow_s * fast_s)))

    def _reached_s(self, segments: Segments, node: TimeRange) -> float:
        """Solve at the slow end of a range; return the tau below which alone there may be better plans."""
        slow_s, effort = node.slow_s, self._effort
        point = self._lagrangian.solve(segments, slow_s, slow_s, node.multipliers)
        left_s = self._left_s(slow_s, point.bound)
        if not isinstance(point.path, Segments):  # there is none
            return 0.0
        if not point.is_coupled:
            return min(left_s, self._holds_until_s(point.path, slow_s))
        bound, path = self._labelled(segments, point, self._labels.beyond)
        left_s = min(left_s, self._left_s(slow_s, bound), self._holds_until_s(path, slow_s))
        if left_s < slow_s * (1 - self._labels.least_gain):
            return left_s
        is_wide = len(segments) > effort.few_segments and not node.is_within(1 - effort.narrow)
        if np.isfinite(self._best) and (is_wide or left_s < slow_s * effort.narrow):
            return left_s
        bound, path = self._programme(segments, slow_s)
        return min(self._left_s(slow_s, bound), self._holds_until_s(path, slow_s))

    def _left_s(self, slow_s: float, bound: float) -> float:
        """Return the tau below which a better plan must be, if every plan at slow_s costs at least ``bound``."""
        if np.isinf(bound):
            return 0.0
        return slow_s * min(1.0, self._best / bound) if bound > 0 else slow_s

    def _ceiling(self, slow_s: float) -> float:
        """Return the bound at which a range is closed: no better plan in it, or none that the limits leave possible."""
        return min(self._best * (1 - self._gap), self._affordable(slow_s))

    def _holds_until_s(self, path: Segments | None, slow_s: float) -> float:
        """Return a tau just below the one that the stages of the cheapest path at slow_s reach with their units.

        The plan costs no more than any between that and slow_s. If the demands of segments are lower bounds, that
        holds only if its stages need no more units than its segments.
        """
        if path is None:
            return slow_s
        demand, units = path.demand, path.demand.units(slow_s * (1 + ROUNDING))
        if not self._chain.is_exact:
            stages = flatten_stages(self.problem, *to_arrays([self._chain.placement(path)]))
            demand, least = stages.work.demand(), units
            units = demand.units(slow_s * (1 + ROUNDING))
            if np.any(units > least):
                return slow_s
        return float(demand.time_s(units).max()) * (1 - 3 * ROUNDING)


def search_type(problem: Problem) -> type[TimeSearch]:
    """Return the search for the objective of a problem."""
    if problem.objective == "cost":
        return CostSearch
    return FloorSearch if OBJECTIVES[problem.objective].sums_at_floor else FastestSearch
