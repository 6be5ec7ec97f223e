"""The exact search where the time of a batch is given, or is itself what is minimised.

At a fixed time tau of a batch in the slowest stage every segment has its fewest units, and a plan is a cheapest path
over segments (``paths.py``)::

    throughput, max-load     tau is halved between one that some plan reaches and one proven out of reach
                             out of reach:  even the cheapest path costs more than the budget, or there is none
    price                    tau is the floor's, since no plan needs fewer units to be faster; the cheapest path
    latency                  tau is the floor's; the path of the least latency

Limits on units, and the budget of ``latency``, couple the segments: Lagrange multipliers bound the optimum from below
(``lagrangian.py``), and what they leave open is closed by labels where prices alone count (``label_setting.py``),
or by a mixed-integer programme (``path_programme.py``). On plain chains multipliers take milliseconds
(``longest_segments.py``): they rule out all the times of a batch that they can before the first programme.

Left out: the objective ``cost``, where price and time trade off (``range_search.py``).
"""

from collections.abc import Sequence

import numpy as np

from heterps_compile.cost.chosen_units import BUDGET_TOLERANCE
from heterps_compile.cost.evaluate import slowest_batch_s
from heterps_compile.cost.finders import PROOF
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Placement
from heterps_compile.passes.deadline import Deadline, TimeUpError
from heterps_compile.passes.placement.geometry import Chain, Runs, Segments
from heterps_compile.passes.placement.incumbent import Incumbent
from heterps_compile.passes.placement.lattice import Lattice
from heterps_compile.progress import tell

from .effort import EFFORT, Effort
from .label_setting import LimitedPaths
from .lagrangian import Lagrangian, Relaxation
from .linked_chain import LinkedChain
from .longest_segments import LongestPaths
from .path_programme import CoupledPath, Coupling, Terms, coupled_path
from .paths import SegmentPrices
from .trivial_bounds import GAP, longest_s, trivial_bound

_MUCH = 100.0  # times what all units cost: where limits alone count, so little do prices


class FixedTimeSearch:
    """The search, which can be stopped at any time.

    Attributes:
        best: Value of the best plan, inf until there is one; no plan that is no better than the incumbent counts.
        placement: That plan; None where none is better than the value that the incumbent began with.
        bound: A proven lower bound on the value of every placement; inf where it is proven that none is feasible.
        evaluations: Placements evaluated.
        left: Where the costs of segments are lower bounds, and tau is the floor's: the segments that may be in a better
            plan; None where they are too many.
        loose: The plan that seems cheapest within the limits.
    """

    def __init__(
        self,
        chain: Chain | LinkedChain | Lattice,
        deadline: Deadline,
        starts: Sequence[Placement] = (),
        effort: Effort = EFFORT,
        *,
        incumbent: Incumbent | None = None,
    ) -> None:
        """Begin with some placements."""
        self._incumbent = Incumbent(chain.problem) if incumbent is None else incumbent
        self.problem, self.deadline, self._effort = chain.problem, deadline, effort.fixed_time
        self._labels = effort.labels
        self.best, self.bound, self.evaluations = np.inf, trivial_bound(self.problem), 0
        self.placement: Placement | None = None
        self.left: list[Segments | None] = []
        self.loose: Placement | None = None
        self.tells = False  # the caller of the compilation, of bounds
        self._chain = chain
        self._seen: set[Placement] = set()
        self._lagrangian, self._counted = Lagrangian(chain, deadline, self._try), 0
        if isinstance(chain, Chain) and not self._is_short and LongestPaths.fits(chain, self._effort.most_ends):
            self._lagrangian.longest = LongestPaths(chain)
        self._hear()
        self._multipliers = self._lagrangian.none  # the best of the last time, a good start for the next
        if not self._is_at_floor:
            self._multipliers = np.append(_MUCH * self._most_spent / np.maximum(self.problem.max_units, 1), 0.0)
        for start in starts:
            self._try(start)

    def run(self) -> None:
        """Search until the best plan is proven best, or the time is up, or the limits leave a gap that cannot close."""
        slow_s = min(slowest_batch_s(self.problem), longest_s(self.problem))
        try:
            if self._is_at_floor:
                bound = self._cheapest(slow_s, self._affordable)
                self.bound = self.best if bound > self._affordable else min(bound, self.best)
            else:
                self._halve(slow_s)
        except TimeUpError:
            self.bound = min(self.bound, self.best)
        if np.isfinite(self.best) and self.bound >= self.best * (1 - 2 * GAP):
            self.bound = self.best

    def _halve(self, slow_s: float) -> None:
        """Close in on the least time of a batch; ``bound`` is out of reach, ``best`` is reached."""
        if np.isinf(self.best) and self._is_out_of_reach(slow_s):
            self.bound = np.inf
            return
        near = self._effort.near
        step = np.inf if self._lagrangian.longest is None else self._bar(min(self.best, slow_s))
        unknown_s = 0.0  # the slowest time of which nothing could be proven
        while max(self.bound, unknown_s) < min(self.best, slow_s) * (1 - GAP):
            if self.tells:
                self._incumbent.raise_bound(min(self.bound, self.best))
                tell(bound=min(self.bound, self.best))
            low_s, high_s = max(self.bound, unknown_s), min(self.best, slow_s)
            middle_s = (low_s + high_s) / 2 if low_s < high_s * (1 - near) else high_s * (1 - GAP)
            middle_s, step = min(middle_s, low_s * (1 + step)), 2 * step
            before = self.best
            out = self._is_out_of_reach(middle_s)
            if out:
                self.bound = max(self.bound, middle_s)
            elif self.best >= before:
                unknown_s = middle_s
        while unknown_s > self.bound * (1 + near):  # how much of what is unknown can be proven out of reach after all
            middle_s = (self.bound + unknown_s) / 2
            if self._is_out_of_reach(middle_s):
                self.bound = middle_s
            else:
                unknown_s = middle_s

    def _bar(self, slow_s: float) -> float:
        """Raise the bound as far as multipliers can; return the first step beyond, relative."""
        while self.bound < slow_s * (1 - self._effort.near):
            middle_s = float(np.sqrt(self.bound * slow_s)) if self.bound > 0 else slow_s / 2
            if self._is_out_of_reach(middle_s, is_last=False):
                self.bound = middle_s
            else:
                slow_s = middle_s
        return self._effort.first_step

    def _is_out_of_reach(self, time_s: float, *, is_last: bool = True) -> bool:
        """Say whether it is proven that no plan takes at most so long; a plan that does, where found, is kept."""
        enough = self._most_spent * (1 + 2 * BUDGET_TOLERANCE)
        bound = self._cheapest(time_s, enough, is_last=is_last)
        return bool(np.isinf(bound) or bound > enough)

    def _cheapest(self, time_s: float, enough: float = np.inf, *, is_last: bool = True) -> float:
        """Bound the cost of the cheapest path within the limits, inf where there is none; try the paths on the way.

        Args:
            time_s: Of a batch.
            enough: Stop at a bound above this.
            is_last: Whether to close what multipliers leave open.
        """
        begin = free = self._lagrangian.solve(None, time_s, time_s, self._lagrangian.none)
        if self._is_at_floor and not self._chain.is_exact:
            limit = self.best + free.refund
            self.left = [free.graph.keep_below(free.counts, free.to_go, limit, self._effort.most_left)]
            self.loose = None if free.path is None else self._chain.placement(free.path)
        if free.path is None or not free.is_coupled:
            return free.bound
        if np.any(self._multipliers > 0):
            begin = self._lagrangian.solve(None, time_s, time_s, self._multipliers)
        is_listed = self._is_short and not self._is_at_floor  # the programme comes next
        steps = self._effort.steps_first if is_listed else self._effort.steps
        goal = (lambda: min(self.best, enough)) if self._is_at_floor else (lambda: enough)
        best = self._lagrangian.raised(begin, None, goal, steps)
        self._multipliers = best.multipliers
        if np.isinf(best.bound) or best.bound > enough or not is_last:
            return best.bound
        best = free if self._is_at_floor and best.bound < free.bound else best
        if self._is_at_floor:
            return self._close(time_s, best)
        return self._programme(time_s, best, enough)

    def _close(self, time_s: float, best: Relaxation) -> float:
        """Bound the cost of the cheapest path by labels and the programme, over the segments that may be in it."""
        if np.isinf(self.best):
            self._find_any(time_s, best)
        limit = self.best * (1 + GAP) + best.refund
        segments = best.graph.keep_below(best.counts, best.to_go, limit, self._effort.most_left)
        bound = best.bound
        if segments is not None and self.problem.objective == "price" and bound > 0:
            bound = max(bound, self._labelled(segments, best))
        if segments is None or len(segments) > self._effort.most_listed or bound >= self.best * (1 - GAP):
            return bound
        found = self._coupled(segments, time_s, np.inf)
        return max(bound, min(found.bound, self.best * (1 + GAP)))

    def _find_any(self, time_s: float, best: Relaxation) -> None:
        """Look for a first plan within the limits among the segments of cheap paths."""
        for segments in best.cheap_lists(self._effort.most_listed):
            self._coupled(segments, time_s, self._effort.programme_s)
            if np.isfinite(self.best):
                return

    def _labelled(self, segments: Segments, best: Relaxation) -> float:
        """Bound the price of every path within the limits on units, and try the cheapest, where labels find it."""
        paths, highest = LimitedPaths.of(segments, best.prices, best.to_go), min(self.best, self._affordable)
        found = paths.cheapest(self.problem.price_per_hour, best.bound, highest, self._labels)
        if found.chosen is not None:
            self.loose = self._chain.placement(segments.keep(found.chosen))
            self._try(self.loose)
        self.deadline.check()
        return np.inf if found.chosen is None and found.bound >= self._affordable else found.bound

    @property
    def _most_spent(self) -> float:
        """Return what no plan costs more than, at the prices of segments: the budget, or all units that there are."""
        problem = self.problem
        if problem.objective == "max-load":
            return float(problem.max_units.sum())
        return min(problem.budget_per_hour, float(problem.price_per_hour @ problem.max_units))

    @property
    def _is_short(self) -> bool:
        """Whether all segments can be listed."""
        return self._chain.segment_count <= self._effort.most_listed

    @property
    def _is_at_floor(self) -> bool:
        """Whether tau is the floor's, and the cost of a path the value of a plan."""
        return OBJECTIVES[self.problem.objective].sums_at_floor

    @property
    def _affordable(self) -> float:
        """Return what no plan costs more than: for ``price`` what all units that there are cost."""
        problem = self.problem
        return float(problem.price_per_hour @ problem.max_units) * (1 + GAP) if problem.objective == "price" else np.inf

    def _programme(self, time_s: float, best: Relaxation, target: float) -> float:
        """Solve the mixed-integer programme over the segments that may be on a path that costs less than a target."""
        limit, longest = target * (1 + GAP) + best.refund, self._lagrangian.longest
        if longest is not None:
            runs, units, below = longest.maximal_below(time_s, best.prices.of_unit, limit, self._effort.most_maximal)
            cost = units * SegmentPrices.at(self.problem, time_s).of_unit[runs.type]
            spent = units * self.problem.price_per_hour[runs.type]
            found = self._solved(runs, Terms(cost, units, spent), self._effort.programme_s, longest)
            return max(best.bound, min(found.bound, below - best.refund))
        segments = best.graph.keep_below(best.counts, best.to_go, limit, self._effort.most_listed)
        if segments is None:
            return best.bound
        found = self._coupled(segments, time_s, self._effort.programme_s)
        return max(best.bound, min(found.bound, target * (1 + GAP)))

    def _coupled(self, segments: Segments, time_s: float, most_s: float) -> CoupledPath:
        """Solve the programme over some segments, in so many seconds at most, and try the plan that it finds."""
        problem, prices = self.problem, SegmentPrices.at(self.problem, time_s)
        cost = prices.of(segments.demand, segments.type)
        units = np.where(np.isfinite(cost), prices.units(segments.demand), np.inf)
        spent = np.where(np.isfinite(cost), problem.price_per_hour[segments.type] * units, 0.0)
        return self._solved(segments, Terms(cost, units, spent), most_s, None)

    def _solved(self, segments: Runs, terms: Terms, most_s: float, longest: LongestPaths | None) -> CoupledPath:
        """Solve the programme over segments, the longest of which may overlap, and try the plan that it finds."""
        problem = self.problem
        found = coupled_path(
            segments,
            terms,
            Coupling.of(problem, self._chain.length, problem.budget_per_hour * (1 + BUDGET_TOLERANCE)),
            self.deadline,
            most_s=most_s,
            enough=-np.inf if self._is_at_floor else self._most_spent,
            may_overlap=longest is not None,
        )
        if found.chosen is not None:
            path = segments.keep(found.chosen)
            self.loose = self._chain.placement(path if longest is None else longest.parted(path))
            self._try(self.loose)
        self.deadline.check()
        return found

    def _try(self, placement: Placement) -> None:
        if placement not in self._seen:
            self._seen.add(placement)
            self.evaluations += 1
            self._incumbent.offer(placement, self._chain.value(placement), PROOF)
        priced = self._lagrangian.priced - self._counted
        self._counted += priced
        self._incumbent.exchange(priced)
        self._hear()

    def _hear(self) -> None:
        """Take the plan of the incumbent where it is better."""
        if self._incumbent.value < self.best:
            self.best, self.placement = self._incumbent.value, self._incumbent.placement
