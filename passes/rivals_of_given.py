"""Plans of a problem with given costs, and more where the best one has no room for what its schedule holds.

The search counts the activations of one sample in each stage, which no schedule holds less than. What a plan holds also
depends on the stages after it::

    small problem   all placements with all replicas, in the order of their values: the first that fits is the best
    others          the best plan of each number of stages, with as many samples' activations as it has stages, then one

Not covered: what a plan holds, which its prediction says.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, product

import numpy as np

from heterps_compile.cost.chosen_units import BUDGET_TOLERANCE
from heterps_compile.cost.evaluate import detail, evaluate, slowest_batch_s, to_placement
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.passes.deadline import Deadline
from heterps_compile.problem_file.given_plan import GivenPlan, has_units
from heterps_compile.problem_file.given_problem import GivenProblem
from heterps_compile.problem_file.pose_given import PosedGiven, plan_of

from .place_layers import run_method
from .placement.enumeration import every_placement, placement_count
from .placement.proof.exact import Exact

_MOST_PLANS = 5_000
_MOST_STAGES = 8  # of plans whose numbers of stages are searched one by one
_STAGES_S = 1.0  # for the best plan of one number of stages


@dataclass(frozen=True, slots=True)
class Rival:
    """A plan.

    Attributes:
        plan: Stages and replicas; the batch undivided.
        value: Of the objective, in the steady state.
        price_per_hour: Of its units; inf where it is not counted.
        bound: No plan that comes later has a lower value.
    """

    plan: GivenPlan
    value: float
    price_per_hour: float = np.inf
    bound: float = -np.inf


@dataclass(frozen=True, slots=True)
class PlacedGiven:
    """Plans of a problem with given costs.

    Attributes:
        rivals: The best first, of which the one of the shortest or cheapest step is to be taken. In the steady state
            none is worse than the best one whose stages have one type each, but for the throughput of training, whose
            steps do not overlap.
        bound: No plan of those that were looked at has a lower value.
        holds_for: Which these are, in words.
        method: That found them.
        search_s: Seconds it took, the proof included.
        notes: What the reader should know.
        others: Yields further plans, the lowest value first: the first that fits is taken if no rival does. With a
            step's value to minimise all plans of a small problem, by lower bounds on their values.
    """

    rivals: tuple[Rival, ...]
    bound: float
    holds_for: str
    method: str
    search_s: float = 0.0
    notes: tuple[str, ...] = ()
    others: Callable[[], Iterator[Rival]] = lambda: iter(())

    @property
    def plan(self) -> GivenPlan:
        """Return the best plan."""
        return self.rivals[0].plan

    @property
    def value(self) -> float:
        """Return the value of the best plan."""
        return self.rivals[0].value


def is_small(problem: Problem) -> bool:
    """Check if all plans are few enough to price each of them."""
    most = float(problem.max_units.max(initial=1))
    return placement_count(problem) * most ** min(problem.layer_count, problem.max_stages) <= _MOST_PLANS


def every_rival(given: GivenProblem, posed: PosedGiven, deadline: Deadline, factor: float = 1.0) -> Iterator[Rival]:
    """Yield all plans that keep the limits, in the order of their values times a factor; O(plans * stages)."""
    problem, number = posed.problem, count()
    heap: list[tuple[float, int, Placement, tuple[int, ...], float]] = []
    for types, cuts in every_placement(problem):
        values = evaluate(problem, types, cuts).values
        rows = np.flatnonzero(np.isfinite(values)).tolist()
        heap += [(float(values[row]), next(number), to_placement(types[row], cuts[row]), (), 0.0) for row in rows]
    heapq.heapify(heap)
    while heap and not deadline.is_over:
        value, _, placement, units, price = heapq.heappop(heap)
        if units:
            plan = plan_of(given, posed, placement, list(units))
            if has_units(given, plan):
                yield Rival(plan, value * factor, price, value * factor)
            continue
        for choice, own_value, own_price in _with_all_units(problem, placement):
            heapq.heappush(heap, (own_value, next(number), placement, choice, own_price))


def _with_all_units(problem: Problem, placement: Placement) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """Yield the replicas of stages that keep the limits, with value and price."""
    types = np.array([placement.types[first] for first in placement.starts()])
    most = problem.max_units[types].tolist()
    for units in product(*(range(1, each + 1) for each in most)):
        used = np.bincount(types, weights=units, minlength=problem.type_count)
        priced = detail(problem, placement, np.array(units, np.float64))
        is_slow = problem.batch / priced.throughput > slowest_batch_s(problem)
        is_dear = priced.price_per_hour > problem.budget_per_hour * (1 + BUDGET_TOLERANCE)
        if not (is_slow or is_dear or np.any(used > problem.max_units)):
            yield units, priced.value, priced.price_per_hour


def best_of_stage_counts(posed: PosedGiven, deadline: Deadline, *, is_roomy: bool) -> Iterator[Placement]:
    """Yield the best placements of one stage, two and so on.

    Args:
        posed: The problem.
        deadline: Of all searches together; each takes a second at most.
        is_roomy: Whether each stage is to have room for the activations of as many samples as there are stages.
    """
    problem = posed.problem
    for stages in range(problem.min_stages, min(problem.max_stages, problem.layer_count, _MOST_STAGES) + 1):
        kept = problem.activation_bytes * (stages if is_roomy else 1)
        asked = replace(problem, min_stages=stages, max_stages=stages, activation_bytes=kept)
        own = run_method(Exact(), asked, time_limit_s=max(0.0, min(_STAGES_S, deadline.left_s())))
        if isinstance(own, SearchResult):
            yield own.placement


def roomy_rivals(given: GivenProblem, posed: PosedGiven, deadline: Deadline) -> Iterator[Rival]:
    """List the best plans of every number of stages."""
    found = {each for is_roomy in (True, False) for each in best_of_stage_counts(posed, deadline, is_roomy=is_roomy)}
    rivals = sorted((rival(given, posed, each) for each in found), key=lambda each: each.value)
    return (each for each in rivals if has_units(given, each.plan))


def rival(given: GivenProblem, posed: PosedGiven, placement: Placement) -> Rival:
    """Price a placement with its best replicas."""
    priced = detail(posed.problem, placement)
    plan = plan_of(given, posed, placement, [stage.replicas for stage in priced.stages])
    return Rival(plan, priced.value, priced.price_per_hour)
