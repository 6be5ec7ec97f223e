"""Branch and bound over the time of a batch: the proof behind the exact search.

Let tau be the time of a batch in the slowest stage; the price of a batch is tau times the price of all units. At a
fixed tau the cheapest plan is a cheapest path over segments (``paths.py``). Over a range (fast, slow] of tau the same
path, with every segment at the least it can cost in the range, is a *lower bound*, and segments on no path below the
best plan's value are dropped for the rest of the range::

    (0, slow]  bound < best: drop segments, split
      (0, mid]   bound >= best: closed, nothing better in here
      (mid, slow]  cheapest plan at slow costs v >= best: no better one above mid' = slow * best / v; go on below
        (mid, mid']  ...

Limits on units couple the segments. Lagrange multipliers turn them into prices, and the bound stays a bound
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

from heterps_compile.cost.evaluate import slowest_batch_s, to_arrays
from heterps_compile.cost.finders import PROOF
from heterps_compile.cost.problem import Floats, Placement
from heterps_compile.cost.segments import flatten_stages
from heterps_compile.passes.deadline import Deadline, TimeUpError
from heterps_compile.passes.placement.geometry import Chain, Segments
from heterps_compile.passes.placement.incumbent import Incumbent
from heterps_compile.passes.placement.lattice import Lattice
from heterps_compile.progress import tell

from .effort import EFFORT, Effort, MarchEffort
from .label_setting import LimitedPaths
from .lagrangian import Lagrangian, Relaxation
from .linked_chain import LinkedChain
from .march import March, TimeRange
from .path_programme import Coupling, Terms, coupled_path
from .paths import ROUNDING, SegmentPrices
from .trivial_bounds import GAP, batch_price, longest_s, per_million_samples, trivial_bound

_REMEMBERED = 256  # placements that are not evaluated once more


@dataclass(frozen=True, slots=True, order=True)
class _Range:
    """A range of tau whose plans cost at least ``bound``."""

    bound: float
    slow_s: float
    fast_s: float
    segments: Segments | None = field(compare=False)  # None for all of them
    multipliers: Floats = field(compare=False)


def marches_at_once(chain: Chain, effort: MarchEffort) -> bool:
    """Say whether a march alone is fastest: the chain is long, and hardly a bound of it below the price of a plan."""
    problem = chain.problem
    is_free = problem.min_stages <= 1 and problem.max_stages >= chain.length
    if chain.length < effort.at_once or not chain.is_exact or chain.longest_span > 1 or not is_free:
        return False
    # units for each block on its cheapest type: with as many, limits hardly bind
    work_s = np.where(chain.usable_blocks(), np.diff(chain.compute_s), np.inf)
    cheapest = np.argmin(work_s * problem.price_per_hour[:, None], axis=0)
    needed_s = np.bincount(cheapest, work_s[cheapest, np.arange(chain.length)], problem.type_count)
    return bool(np.all(needed_s <= problem.max_units * min(slowest_batch_s(problem), 1e300)))


class RangeSearch:
    """The search, which can be stopped at any time.

    Attributes:
        best: Value of the best plan, inf until there is one; no plan that is no better than the incumbent counts.
        placement: That plan; None where none is better than the value that the incumbent began with.
        bound: A proven lower bound on the value of every placement; inf where it is proven that none is feasible.
        evaluations: Placements evaluated.
        width: Relative; where the costs of segments are lower bounds, ranges narrower than that may stay open.
        is_hasty: Stop at the first of those, since its bound is the lowest.
        left: Where the costs of segments are lower bounds: the segments of ranges that could not be closed for it.
        loose: The plan that seems cheapest in them.
        tells: Whether the caller of the compilation is told of bounds, as they hold for all that it asked for.
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
    ) -> None:
        """Begin with some placements; stop where no plan can be better by more than ``gap``, relative."""
        problem = chain.problem
        self._incumbent = Incumbent(problem) if incumbent is None else incumbent
        self.problem, self.deadline = problem, deadline
        self._chain, self._gap, self._effort = chain, gap, effort
        self.best = np.inf
        self.placement: Placement | None = None
        self.bound = batch_price(problem, trivial_bound(problem))
        self.evaluations = 0
        self.width, self.is_hasty, self.tells = 5e-3, False, False
        self.left: list[Segments | None] = []
        self.loose: Placement | None = None
        self._tried: set[Placement] = set()
        self._lagrangian, self._counted = Lagrangian(chain, deadline, self._try), 0
        self._hear()
        for start in starts:
            self._try(start)

    def run(self) -> None:
        """Search until the best plan is proven best, or the time is up."""
        slow_s = min(slowest_batch_s(self.problem), longest_s(self.problem), self._most_s())
        node = _Range(self.bound, slow_s, 0.0, None, self._lagrangian.none)
        open_, unclosed = [node], np.inf
        try:
            if isinstance(self._chain, Chain) and self._is_long and not self._is_coupled(node):
                open_ = self._begun(self._chain, node)
            while open_ and open_[0].bound < self.best * (1 - self._gap):
                node = heapq.heappop(open_)
                if self.tells:
                    bound = per_million_samples(self.problem, min(node.bound, unclosed, self.best))
                    self._incumbent.raise_bound(bound)
                    tell(bound=bound)
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

    @property
    def _is_long(self) -> bool:
        """Whether a march comes first."""
        march = self._effort.march
        return self._chain.length >= min(march.least_positions, march.at_once)

    def _is_coupled(self, whole: _Range) -> bool:
        """Say whether limits on units bind, on a chain whose segments can be listed: a march knows nothing of them."""
        if self._chain.segment_count > self._effort.ranges.most_listed:
            return False
        paid = self.problem.price_per_hour * self.problem.max_units  # by which no plan that matters is held
        times_s = [
            whole.slow_s * share
            for share in self._effort.ranges.probed
            if np.any(paid * whole.slow_s * share < self.best)
        ]
        return any(self._lagrangian.solve(None, time_s, time_s, whole.multipliers).is_coupled for time_s in times_s)

    def _leave(self, node: _Range) -> None:
        """Keep what a range that cannot be closed would need: its segments, and the path that is too cheap."""
        self.left.append(node.segments)
        if self.loose is None:  # the first is the cheapest
            path = self._lagrangian.solve(node.segments, node.slow_s, node.fast_s, node.multipliers).path
            self.loose = None if path is None else self._chain.placement(path)

    def _begun(self, chain: Chain, whole: _Range) -> list[_Range]:
        """Begin with what does best on many positions; give what is left, as a heap."""
        march = self._effort.march
        is_long = chain.length >= march.least_positions and np.isfinite(self.best)  # a bound needs something to beat
        if is_long or marches_at_once(chain, march):
            return sorted(self._marched(chain, [TimeRange(whole.bound, whole.slow_s, 0.0)], whole))
        return self._open(whole) if np.isinf(self.best) else [whole]

    def _marched(self, chain: Chain, ranges: Sequence[TimeRange], whole: _Range) -> list[_Range]:
        """Close what a march through times of a batch can; give what is left."""
        march = March(chain, ranges, self.deadline, self._effort.march)
        with suppress(TimeUpError):  # as above
            while march.open:
                march.step(lambda: self._ceiling(whole), self._try)
        left = [*march.left, *((range_, None) for range_ in march.open)]
        return [_Range(r.bound, r.slow_s, r.fast_s, segments, whole.multipliers) for r, segments in left]

    def _most_s(self) -> float:
        """Return the tau above which even one unit of the cheapest type per stage costs more than the best plan."""
        least = float(self.problem.price_per_hour.min()) * self.problem.min_stages
        return self.best / least if least > 0 else np.inf

    def _open(self, node: _Range) -> list[_Range]:
        """Bound a range; give the parts of it that may hold a better plan."""
        effort = self._effort.ranges
        goal = self._ceiling(node)  # one while the bound is raised: a plan found meanwhile lowers it
        begin = self._lagrangian.solve(node.segments, node.slow_s, node.fast_s, node.multipliers)
        steps = effort.steps_first if node.fast_s == 0 else effort.steps
        solution = self._lagrangian.raised(begin, node.segments, lambda: goal, steps)
        bound = max(node.bound, solution.bound)
        if bound >= self._ceiling(node):
            return []
        segments, slow_s, fast_s = node.segments, node.slow_s, node.fast_s
        if np.isinf(self.best) and self._chain.segment_count > effort.most_columns:
            self._find_any(solution, slow_s)
        if np.isfinite(self.best) or self._chain.segment_count <= effort.most_listed:
            limit = self.best + solution.refund
            segments = solution.graph.keep_below(solution.counts, solution.to_go, limit, effort.most_listed)
        if segments is not None:
            slow_s = self._march(segments, node, solution.multipliers)
        if slow_s <= fast_s:
            return []
        middle_s = slow_s * effort.first_ratio if fast_s == 0 else float(np.sqrt(slow_s * fast_s))
        return [
            _Range(bound, slow_s, middle_s, segments, solution.multipliers),
            _Range(bound, middle_s, fast_s, segments, solution.multipliers),
        ]

    def _find_any(self, solution: Relaxation, slow_s: float) -> None:
        """Look for a first plan within the limits among the segments of cheap paths.

        Raises:
            TimeUpError: where none is found: without any plan nothing can be dropped, and the search would not end.
        """
        for segments in solution.cheap_lists(self._effort.ranges.most_columns):
            self._march_coupled(segments, slow_s)
            if np.isfinite(self.best):
                return
        raise TimeUpError

    def _march(self, segments: Segments, node: _Range, multipliers: Floats) -> float:
        """Solve at the slow end of a range; give the tau below which alone there may be better plans."""
        slow_s, effort = node.slow_s, self._effort.ranges
        solution = self._lagrangian.solve(segments, slow_s, slow_s, multipliers)
        if not isinstance(solution.path, Segments):  # there is none
            return 0.0
        left_s = self._left_s(slow_s, solution.bound)
        if not solution.is_coupled:
            return min(left_s, self._reached(solution.path, slow_s))
        left_s = min(left_s, self._march_labelled(segments, solution, slow_s))
        if left_s < slow_s * (1 - self._effort.labels.least_gain):
            return left_s
        is_wide = len(segments) > effort.few_segments and node.fast_s < slow_s * effort.narrow
        if np.isfinite(self.best) and (is_wide or left_s < slow_s * effort.narrow):
            return left_s
        return self._march_coupled(segments, slow_s)

    def _march_labelled(self, segments: Segments, solution: Relaxation, slow_s: float) -> float:
        """Do the same with limits on units, by labels."""
        if solution.bound <= 0:  # free units: no ceiling lies a little above that
            return slow_s
        problem, effort = self.problem, self._effort.labels
        paths = LimitedPaths.of(segments, solution.prices, solution.to_go)
        price = problem.price_per_hour * slow_s
        affordable = self._affordable(slow_s)
        highest = min(self.best * effort.beyond, affordable)
        found = paths.cheapest(price, solution.bound, highest, effort)
        if found.chosen is None:
            return self._left_s(slow_s, found.bound) if found.bound < affordable else 0.0
        path = segments.keep(found.chosen)
        is_best = found.cost <= found.bound and problem.min_stages <= len(path) <= problem.max_stages
        reached_s = self._taken(path, slow_s, is_best=is_best)
        return min(reached_s, self._left_s(slow_s, found.bound))

    def _march_coupled(self, segments: Segments, slow_s: float) -> float:
        """Do the same with limits on units, by a mixed-integer programme."""
        prices = SegmentPrices.at(self.problem, slow_s)
        terms = Terms(prices.of(segments.demand, segments.type), prices.units(segments.demand))
        found = coupled_path(segments, terms, Coupling.of(self.problem, self._chain.length), self.deadline)
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
        if placement not in self._tried:  # ranges of a time have the same cheapest paths again and again
            if len(self._tried) >= _REMEMBERED:
                self._tried.clear()
            self._tried.add(placement)
            self.evaluations += 1
            self._incumbent.offer(placement, self._chain.value(placement), PROOF)
        priced = self._lagrangian.priced - self._counted
        self._counted += priced
        self._incumbent.exchange(priced or self._chain.length * self.problem.type_count)
        self._hear()

    def _hear(self) -> None:
        """Take the plan of the incumbent where it is better."""
        value = batch_price(self.problem, self._incumbent.value)
        if value < self.best:
            self.best, self.placement = value, self._incumbent.placement
