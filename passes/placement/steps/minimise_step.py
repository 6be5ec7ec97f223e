"""The plan of the best step, and what is proven of it: what follows a search in the steady state.

A step takes no less time than a batch in the steady state, with the same units, so that no plan's value is below the
proven bound of that. Where measured times of small micro-batches add up to less than the whole batch's, the bound is
that much lower; with a throughput floor it is then none, as the floor of the steady state rules out too much.

Where that bound leaves room, plans are bounded by what steps take (``step_bound.py``), and branch and bound closes what
it can (``step_closing.py``); it may come upon a better plan. That bound is of plans that keep the order of the layers.

Left out: the search (``step_search.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterps_compile.cost.finders import STEPS, finder
from heterps_compile.cost.problem import Placement, SearchResult
from heterps_compile.errors import UnprovenError
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.proof.trivial_bounds import GAP
from heterps_compile.passes.placement.simple_plans import seed_placements
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE, rate
from heterps_compile.schedule.step_problem import StepProblem
from heterps_compile.units import format_rate

from .step_closing import CLOSING_EFFORT, ClosingEffort, close_steps
from .step_plans import SteppedPlan, value_of
from .step_search import STEP_EFFORT, StepEffort, StepSearch

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class StepsFound:
    """What a search over steps found.

    Attributes:
        plan: The best that keeps to all limits; None where none was found.
        evaluations: Placements that were looked at.
        shortest_s: The shortest step found where none meets the throughput floor; inf where that was not asked.
        bound: No plan in this order of the layers has a lower value, by what steps take; minus infinity where none is
            known.
        others: Plans that the search came by.
        notes: Limits that the search met, in sentences.
    """

    plan: SteppedPlan | None
    evaluations: int
    shortest_s: float = float("inf")
    bound: float = -float("inf")
    others: tuple[SteppedPlan, ...] = ()
    notes: tuple[str, ...] = ()

    def is_better_than(self, other: "StepsFound") -> bool:
        """Return whether its plan is better, or its shortest step where neither has a plan."""
        if self.plan is None or other.plan is None:
            return other.plan is None and (self.plan is not None or self.shortest_s < other.shortest_s)
        return self.plan.is_better_than(other.plan)


def search_steps(
    of: StepProblem,
    starts: Sequence[Placement],
    deadline: Deadline,
    *,
    effort: StepEffort = STEP_EFFORT,
    known: Sequence[SteppedPlan] = (),
    seed: int = 0,
    least: float = -float("inf"),
) -> StepsFound:
    """Return the plan of the best step found from some placements and the simple ones.

    ``known`` are plans to begin with, ``least`` is a value that no plan is below.
    Where none of them meets the throughput floor, the quickest plan of all is looked for first.
    """
    search = StepSearch(of, deadline, effort, seed=seed, least=least)
    places = [*starts, *seed_placements(of.problem, None)]
    shortest_s, notes, evaluations = float("inf"), tuple[str, ...](), 0
    if search.run(places, known) is None and of.problem.min_throughput > 0:
        without_floor = replace(of, problem=replace(of.problem, objective="throughput", min_throughput=0.0))
        quick = StepSearch(without_floor, deadline, effort, seed=seed)
        if (fastest := quick.run(places)) is not None:
            shortest_s = fastest.step.step_s
            value = value_of(of.problem, fastest.price_per_hour, shortest_s)
            if value < float("inf"):
                search.run([], [replace(fastest, value=value)])
        notes, evaluations = quick.notes, quick.evaluations
    notes, evaluations = tuple(dict.fromkeys((*notes, *search.notes))), evaluations + search.evaluations
    return StepsFound(search.best, evaluations, shortest_s, others=tuple(search.simulated), notes=notes)


def closed(
    of: StepProblem,
    found: StepsFound,
    deadline: Deadline,
    least: float = -float("inf"),
    closing: ClosingEffort = CLOSING_EFFORT,
) -> StepsFound:
    """Return what a search found, or a better plan, with a bound of all; as it is where it meets ``least``."""
    if found.plan is None or found.plan.value <= least * (1 + GAP):
        return found
    by_branches = close_steps(of, found.plan, deadline, closing)
    evaluations = found.evaluations + by_branches.branches
    return replace(found, plan=by_branches.plan, bound=by_branches.bound, evaluations=evaluations)


def with_best_step(
    of: StepProblem, result: SearchResult, found: StepsFound, *, is_only_order: bool = False
) -> SearchResult:
    """Return the result of the steady state with the plan of the best step in its place, and the bounds of that.

    Args:
        of: The problem, in the order of the layers that the plan takes.
        result: Of the steady state.
        found: What the search over steps found.
        is_only_order: Whether the layers have no other order, so that what holds of this one holds of all.

    Where no step of any plan that was looked at fits the memory of its units, the result stays as it is.

    Raises:
        InfeasibleError: where it found none, as no step meets the throughput floor.
    """
    plan = found.plan
    if plan is None and found.shortest_s == float("inf"):
        return result  # no unit has room for a step of it: who searches within memory asks for more
    if plan is None:
        floor, reached = format_rate(of.problem.min_throughput), format_rate(rate(of.problem.batch, found.shortest_s))
        fixed = (
            ""
            if of.is_divisible
            else f" (the model fixes its batch at {of.problem.batch}, which replicas cannot share)"
        )
        raise UnprovenError(
            f"no plan was found that reaches the floor of {floor} with {ONE_BATCH_ALONE}{fixed}, though some "
            f"do in the {STEADY_STATE}: the quickest step makes {reached}; ask for less (--min-throughput), for a "
            f"larger batch (--batch), or for --reading steady-state"
        )
    factor = least_factor(of)
    steady_bound, of_all_orders = (
        min(each * factor if each > 0 else each, plan.value) for each in (result.bound, result.bound_of_all_orders)
    )
    bound = max(steady_bound, found.bound)
    if bound >= plan.value * (1 - _ROUNDING):
        bound = plan.value
    if is_only_order:
        of_all_orders = bound
    is_same = plan.placement == result.placement
    note = f"the plan was found by {finder(STEPS)}, which minimises {ONE_BATCH_ALONE}"
    return replace(
        result,
        placement=plan.placement,
        value=plan.value,
        bound=bound,
        bound_of_all_orders=of_all_orders,
        steady_bound=steady_bound,
        step=plan.step,
        found_by=result.found_by if is_same else STEPS,
        notes=(*result.notes, *(() if is_same else (note,)), *found.notes),
    )


def least_factor(of: StepProblem) -> float:
    """Return what a bound of the steady state is multiplied by to be one of steps: 1 but for parts that are faster."""
    factor = min(of.shrinks_by(count) for count in of.all_counts)
    if factor >= 1 - GAP:
        return 1.0
    return 0.0 if of.problem.min_throughput > 0 else factor
