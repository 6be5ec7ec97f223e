"""The exact search where the time of a batch is given, or is itself what is minimised.

At a fixed time tau of a batch in the slowest stage every segment has its fewest units, and a plan is a cheapest path
over segments (``paths.py``)::

    throughput, max-load     tau is halved between one that some plan reaches and one proven out of reach
                             out of reach:  even the cheapest path costs more than the budget, or there is none
    latency                  tau is the floor's; the path of the least latency

Limits on units, and the budget of ``latency``, couple the segments: fees per unit (Lagrange multipliers) bound the
optimum from below, and a mixed-integer programme closes what they leave open (``path_programme.py``).

Left out: the objective ``cost``, where price and time trade off (``range_search.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.chosen_units import BUDGET_TOLERANCE
from heterps_compile.cost.evaluate import evaluate_one, slowest_batch_s
from heterps_compile.cost.problem import Floats, Ints, Placement, Problem
from heterps_compile.cost.replicas import ReplicaDemand
from heterps_compile.cost.segments import problem_tables
from heterps_compile.passes.deadline import Deadline, TimeUpError
from heterps_compile.passes.placement.geometry import Chain, Segments

from .linked_chain import LinkedChain
from .path_programme import coupled_path
from .paths import ROUNDING, SegmentGraph, StageCounts, cheapest_path
from .range_search import GAP
from .segment_graph import segment_graph
from .trivial_bounds import longest_s

_MOST_LISTED = 120_000  # segments that a mixed-integer programme takes
_FEE_STEPS, _FEE_STEPS_FIRST = 40, 6  # where multipliers are all there is, and before a mixed-integer programme
_PROGRAMME_S = 10.0  # for one programme; halving asks for many
_NEAR = 1e-3  # relative; ranges of time narrower than this are closed from their slow end


@dataclass(frozen=True, slots=True, eq=False)
class TimedPrices:
    """What a segment costs where a batch takes at most ``slow_s`` in every stage.

    Attributes:
        problem: Its objective decides what a cost is: price per hour, units, or latency in seconds.
        slow_s: The time.
        fee: [T], besides, for every unit.
    """

    problem: Problem
    slow_s: float
    fee: Floats

    def units(self, demand: ReplicaDemand) -> Floats:
        """Return the fewest units; inf where no number is enough."""
        limit_s = self.slow_s * (1 + ROUNDING)
        if self.problem.objective == "max-load":
            return np.where(demand.once_s <= limit_s, 1.0, np.inf)
        return demand.units(limit_s)

    def of(self, demand: ReplicaDemand, types: Ints | tuple[slice, None, None]) -> Floats:
        """Return the cost of segments of the given types, fees included; inf where they are impossible alone."""
        problem, units = self.problem, self.units(demand)
        with np.errstate(invalid="ignore"):  # 0 * inf, which the last line answers
            cost = self.fee[types] * units
            if problem.objective == "throughput":
                cost = cost + problem.price_per_hour[types] * units
            elif problem.objective == "max-load":
                cost = cost + units
            else:
                moved_s = demand.fixed_data_s + demand.shared_data_s
                cost = cost + demand.fixed_compute_s + demand.shared_compute_s + moved_s
        beyond = (units > problem.max_units[types]) | (
            problem.price_per_hour[types] * units > problem.budget_per_hour * (1 + BUDGET_TOLERANCE)
        )
        return np.asarray(np.where(beyond, np.inf, cost), np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """The cheapest path within the limits: a bound on its cost, inf where there is none; whether that is its cost."""

    bound: float
    is_proven: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    """A cheapest path with fees.

    Attributes:
        bound: Lagrangian bound on the cost of every path within the limits; inf where there is none at all.
        excess: [T + 1], units, and price, of the path beyond the limits and the budget.
        graph, to_go: The segments with their fees, and what they cost from every position.
        given_back: What the fees of a plan that uses all limits come to.
    """

    bound: float
    excess: Floats
    graph: SegmentGraph
    to_go: Floats
    given_back: float


class FixedTimeSearch:
    """The search, which can be stopped at any time.

    Attributes:
        best: Value of the best plan, inf until there is one.
        placement: That plan.
        bound: A proven lower bound on the value of every placement; inf where it is proven that none is feasible.
        evaluations: Placements evaluated.
    """

    def __init__(self, chain: Chain | LinkedChain, deadline: Deadline, starts: Sequence[Placement] = ()) -> None:
        """Begin with some placements."""
        self.problem, self.deadline = chain.problem, deadline
        self.best, self.bound, self.evaluations = np.inf, trivial_bound(self.problem), 0
        self.placement: Placement | None = None
        self._chain = chain
        self._counts = StageCounts.at_least(self.problem.min_stages)
        self._listed: Segments | None = None
        self._fees = np.zeros(self.problem.type_count + 1)  # the best of the last time, a good start for the next
        self._seen: set[Placement] = set()
        self._limits = np.append(self.problem.max_units.astype(np.float64), self.problem.budget_per_hour)
        for start in starts:
            self._try(start)

    def run(self) -> None:
        """Search until the best plan is proven best, or the time is up, or the limits leave a gap that cannot close."""
        slow_s = min(slowest_batch_s(self.problem), longest_s(self.problem))
        try:
            if self.problem.objective == "latency":
                self.bound = min(self._cheapest(slow_s).bound, self.best)
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
        unknown_s = 0.0  # the slowest time of which nothing could be proven
        while max(self.bound, unknown_s) < min(self.best, slow_s) * (1 - GAP):
            low_s, high_s = max(self.bound, unknown_s), min(self.best, slow_s)
            middle_s = (low_s + high_s) / 2 if low_s < high_s * (1 - _NEAR) else high_s * (1 - GAP)
            before = self.best
            out = self._is_out_of_reach(middle_s)
            if out:
                self.bound = max(self.bound, middle_s)
            elif self.best >= before:
                unknown_s = middle_s
        while unknown_s > self.bound * (1 + _NEAR):  # how much of what is unknown can be proven out of reach after all
            middle_s = (self.bound + unknown_s) / 2
            if self._is_out_of_reach(middle_s):
                self.bound = middle_s
            else:
                unknown_s = middle_s

    def _is_out_of_reach(self, time_s: float) -> bool:
        """Say whether it is proven that no plan takes at most so long; a plan that does, where found, is kept."""
        most = self.problem.budget_per_hour if self.problem.objective == "throughput" else np.inf
        found = self._cheapest(time_s, most * (1 + 2 * BUDGET_TOLERANCE))
        return bool(np.isinf(found.bound) or found.bound > most * (1 + 2 * BUDGET_TOLERANCE))

    def _cheapest(self, time_s: float, enough: float = np.inf) -> _Found:
        """Bound the cost of the cheapest path within the limits, and try the paths on the way.

        Args:
            time_s: Of a batch.
            enough: Stop at a bound above this.
        """
        best = solved = self._solve(time_s, np.zeros_like(self._fees))
        if np.isinf(solved.bound) or not np.any(solved.excess > 0):
            return _Found(solved.bound, True)
        fees, scale = self._fees, 1.0  # one per unit of each type, and one per price
        for _ in range(_FEE_STEPS_FIRST if self._is_short else _FEE_STEPS):
            if np.any(fees > 0):
                solved = self._solve(time_s, fees)
            if np.isinf(solved.bound) or solved.bound > enough:
                return _Found(solved.bound, False)
            scale = scale if solved.bound > best.bound else scale * 0.7
            if solved.bound > best.bound:
                best, self._fees = solved, fees
            ascent = np.where((fees > 0) | (solved.excess > 0), solved.excess, 0.0)
            length = float(ascent @ ascent)
            if length == 0:
                break
            ceiling = min(self._least_to_beat(), enough)
            ceiling = ceiling if np.isfinite(ceiling) else 2 * abs(solved.bound) + 1
            fees = np.maximum(0.0, fees + scale * max(ceiling - solved.bound, 1e-3 * abs(ceiling)) / length * ascent)
        return self._programme(time_s, best, min(self._least_to_beat(), enough))

    @property
    def _is_short(self) -> bool:
        """Whether all segments can be listed."""
        return self._chain.segment_count <= _MOST_LISTED

    def _least_to_beat(self) -> float:
        """Return the cost that a path must stay below to be of use: for ``latency`` the best plan's."""
        return self.best if self.problem.objective == "latency" else np.inf

    def _solve(self, time_s: float, fees: Floats) -> _Solved:
        """Return the Lagrangian bound, and what the path of it needs beyond the limits on units and the budget."""
        problem = self.problem
        prices = TimedPrices(problem, time_s, fees[:-1] + fees[-1] * problem.price_per_hour)
        graph = segment_graph(self._chain, prices, self.deadline)
        to_go = graph.to_go(self._counts)
        given_back = float(fees[:-1] @ self._limits[:-1]) + (fees[-1] * self._limits[-1] if fees[-1] > 0 else 0.0)
        if not np.isfinite(to_go[0, 0]):
            return _Solved(np.inf, np.zeros_like(fees), graph, to_go, given_back)
        path = cheapest_path(graph, self._counts, to_go)
        if len(path) > problem.max_stages:  # so far nobody counted that far
            self._counts = StageCounts.between(problem.min_stages, problem.max_stages)
            return self._solve(time_s, fees)
        self._try(self._chain.placement(path))
        units = prices.units(path.demand)
        used = np.asarray(np.bincount(path.type, units, problem.type_count), np.float64)
        excess = np.append(used, problem.price_per_hour @ used) - self._limits
        if problem.objective != "latency" or np.isinf(self._limits[-1]):
            excess[-1] = 0.0  # there is no budget, or it is what the cost is compared with
        return _Solved(float(to_go[0, 0]) - given_back, excess, graph, to_go, given_back)

    def _programme(self, time_s: float, best: _Solved, target: float) -> _Found:
        """Solve the mixed-integer programme over the segments that may be on a path that costs less than a target."""
        if self._is_short:
            self._listed = self._chain.all_segments(self.deadline) if self._listed is None else self._listed
            segments: Segments | None = self._listed
        else:
            limit = target * (1 + GAP) + best.given_back
            segments = best.graph.keep_below(self._counts, best.to_go, limit, _MOST_LISTED)
        if segments is None:
            return _Found(best.bound, False)
        problem = self.problem
        prices = TimedPrices(problem, time_s, np.zeros(problem.type_count))
        cost = prices.of(segments.demand, segments.type)
        units = np.where(np.isfinite(cost), prices.units(segments.demand), np.inf)
        found = coupled_path(
            segments,
            cost,
            units,
            length=self._chain.length,
            limits=self._limits[:-1],
            least=problem.min_stages,
            most=problem.max_stages,
            deadline=self.deadline,
            most_s=_PROGRAMME_S,
            enough=problem.budget_per_hour if problem.objective == "throughput" else -np.inf,
            spent=np.where(np.isfinite(cost), problem.price_per_hour[segments.type] * units, 0.0),
            budget=problem.budget_per_hour * (1 + BUDGET_TOLERANCE),
        )
        if found.chosen is not None:
            self._try(self._chain.placement(segments.keep(found.chosen)))
        self.deadline.check()
        bound = found.bound if self._is_short else min(found.bound, target * (1 + GAP))
        return _Found(max(best.bound, bound), found.is_optimal)

    def _try(self, placement: Placement) -> None:
        if placement in self._seen:
            return
        self._seen.add(placement)
        self.evaluations += 1
        value = evaluate_one(self.problem, placement)
        if value < self.best:
            self.best, self.placement = value, placement


def trivial_bound(problem: Problem) -> float:
    """Return a bound on the objective that costs nothing, from computation alone.

    ``latency``: every layer where it is fastest. The others: the slowest layer with all the units it could have; and
    all units together, since k units do in a time tau no more than k tau of work, each paid at its price.
    """
    usable = problem_tables(problem).usable
    once_s = np.where(usable, problem.compute_s, np.inf)
    if problem.objective == "latency":
        return float(once_s.min(axis=1).sum())
    affordable = np.minimum(problem.max_units, problem.budget_per_hour / np.maximum(problem.price_per_hour, 1e-300))
    units = np.ones(problem.type_count) if problem.objective == "max-load" else np.maximum(affordable, 1.0)
    least_s = once_s * (1 - problem.compute_parallel + problem.compute_parallel / units)
    money = min(problem.budget_per_hour, float(problem.price_per_hour @ problem.max_units))
    shared_s = float((once_s * problem.price_per_hour).min(axis=1).sum()) / money if money > 0 else 0.0
    bound = max(float(least_s.min(axis=1).max()), shared_s)
    return bound * (1 - GAP) if np.isfinite(bound) else 0.0
