"""The exact search where the time of a batch is given, or is itself what is minimised.

At a fixed time tau of a batch in the slowest stage every segment has its fewest units, and a plan is a cheapest path
over segments (``paths.py``)::

    throughput, max-load     tau is halved between one that some plan reaches and one proven out of reach
                             out of reach:  even the cheapest path costs more than the budget, or there is none
    latency                  tau is the floor's; the path of the least latency

Limits on units, and the budget of ``latency``, couple the segments: Lagrange multipliers bound the optimum from below
(``lagrangian.py``), and a mixed-integer programme closes what they leave open (``path_programme.py``).

Left out: the objective ``cost``, where price and time trade off (``range_search.py``).
"""

from collections.abc import Sequence

import numpy as np

from heterps_compile.cost.chosen_units import BUDGET_TOLERANCE
from heterps_compile.cost.evaluate import evaluate_one, slowest_batch_s
from heterps_compile.cost.problem import Placement
from heterps_compile.passes.deadline import Deadline, TimeUpError
from heterps_compile.passes.placement.geometry import Chain, Segments

from .effort import EFFORT, Effort
from .lagrangian import Lagrangian, Relaxation
from .linked_chain import LinkedChain
from .path_programme import Coupling, Terms, coupled_path
from .paths import SegmentPrices
from .trivial_bounds import GAP, longest_s, trivial_bound


class FixedTimeSearch:
    """The search, which can be stopped at any time.

    Attributes:
        best: Value of the best plan, inf until there is one.
        placement: That plan.
        bound: A proven lower bound on the value of every placement; inf where it is proven that none is feasible.
        evaluations: Placements evaluated.
    """

    def __init__(
        self,
        chain: Chain | LinkedChain,
        deadline: Deadline,
        starts: Sequence[Placement] = (),
        effort: Effort = EFFORT,
    ) -> None:
        """Begin with some placements."""
        self.problem, self.deadline, self._effort = chain.problem, deadline, effort.fixed_time
        self.best, self.bound, self.evaluations = np.inf, trivial_bound(self.problem), 0
        self.placement: Placement | None = None
        self._chain = chain
        self._listed: Segments | None = None
        self._seen: set[Placement] = set()
        self._lagrangian = Lagrangian(chain, deadline, self._try)
        self._multipliers = self._lagrangian.none  # the best of the last time, a good start for the next
        for start in starts:
            self._try(start)

    def run(self) -> None:
        """Search until the best plan is proven best, or the time is up, or the limits leave a gap that cannot close."""
        slow_s = min(slowest_batch_s(self.problem), longest_s(self.problem))
        try:
            if self.problem.objective == "latency":
                self.bound = min(self._cheapest(slow_s), self.best)
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
        unknown_s = 0.0  # the slowest time of which nothing could be proven
        while max(self.bound, unknown_s) < min(self.best, slow_s) * (1 - GAP):
            low_s, high_s = max(self.bound, unknown_s), min(self.best, slow_s)
            middle_s = (low_s + high_s) / 2 if low_s < high_s * (1 - near) else high_s * (1 - GAP)
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

    def _is_out_of_reach(self, time_s: float) -> bool:
        """Say whether it is proven that no plan takes at most so long; a plan that does, where found, is kept."""
        most = self.problem.budget_per_hour if self.problem.objective == "throughput" else np.inf
        enough = most * (1 + 2 * BUDGET_TOLERANCE)
        bound = self._cheapest(time_s, enough)
        return bool(np.isinf(bound) or bound > enough)

    def _cheapest(self, time_s: float, enough: float = np.inf) -> float:
        """Bound the cost of the cheapest path within the limits, inf where there is none; try the paths on the way.

        Args:
            time_s: Of a batch.
            enough: Stop at a bound above this.
        """
        free = self._lagrangian.solve(None, time_s, time_s, self._lagrangian.none)
        if free.path is None or not free.is_coupled:
            return free.bound
        begin = free
        if np.any(self._multipliers > 0):
            begin = self._lagrangian.solve(None, time_s, time_s, self._multipliers)
        steps = self._effort.steps_first if self._is_short else self._effort.steps
        best = self._lagrangian.raised(begin, None, lambda: min(self._least_to_beat(), enough), steps)
        self._multipliers = best.multipliers
        if np.isinf(best.bound) or best.bound > enough:
            return best.bound
        best = best if best.bound >= free.bound else free
        return self._programme(time_s, best, min(self._least_to_beat(), enough))

    @property
    def _is_short(self) -> bool:
        """Whether all segments can be listed."""
        return self._chain.segment_count <= self._effort.most_listed

    def _least_to_beat(self) -> float:
        """Return the cost that a path must stay below to be of use: for ``latency`` the best plan's."""
        return self.best if self.problem.objective == "latency" else np.inf

    def _programme(self, time_s: float, best: Relaxation, target: float) -> float:
        """Solve the mixed-integer programme over the segments that may be on a path that costs less than a target."""
        if self._is_short:
            self._listed = self._chain.all_segments(self.deadline) if self._listed is None else self._listed
            segments: Segments | None = self._listed
        else:
            limit = target * (1 + GAP) + best.refund
            segments = best.graph.keep_below(best.counts, best.to_go, limit, self._effort.most_listed)
        if segments is None:
            return best.bound
        problem = self.problem
        prices = SegmentPrices.at(problem, time_s)
        cost = prices.of(segments.demand, segments.type)
        units = np.where(np.isfinite(cost), prices.units(segments.demand), np.inf)
        spent = np.where(np.isfinite(cost), problem.price_per_hour[segments.type] * units, 0.0)
        found = coupled_path(
            segments,
            Terms(cost, units, spent),
            Coupling.of(problem, self._chain.length, problem.budget_per_hour * (1 + BUDGET_TOLERANCE)),
            self.deadline,
            most_s=self._effort.programme_s,
            enough=problem.budget_per_hour if problem.objective == "throughput" else -np.inf,
        )
        if found.chosen is not None:
            self._try(self._chain.placement(segments.keep(found.chosen)))
        self.deadline.check()
        bound = found.bound if self._is_short else min(found.bound, target * (1 + GAP))
        return max(best.bound, bound)

    def _try(self, placement: Placement) -> None:
        if placement in self._seen:
            return
        self._seen.add(placement)
        self.evaluations += 1
        value = evaluate_one(self.problem, placement)
        if value < self.best:
            self.best, self.placement = value, placement
