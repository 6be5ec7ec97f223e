"""How large a micro-batch of a plan with given costs is, and which of several plans: those of the shortest step.

Left out: the schedule, which is 1F1B; micro-batches of several sizes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from heterps_compile.cost.evaluate import FLOOR_TOLERANCE
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.place_given import PlacedGiven
from heterps_compile.plan.request import Request
from heterps_compile.problem_file.given_plan import GivenPlan
from heterps_compile.problem_file.given_problem import REPLICA, GivenProblem
from heterps_compile.problem_file.problem_laws import shown
from heterps_compile.schedule.load import micro_batch_counts, training_counts
from heterps_compile.schedule.order import MOST_ACTIONS
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, rate
from heterps_compile.schedule.shortest_step import INFERENCE_SCHEDULES, TRAINING_SCHEDULES
from heterps_compile.units import counted, format_bytes, format_rate, format_seconds

from .predict_step import Prediction, predict_step

_ROUNDING = 1e-9  # relative


def choose_of_rivals(
    problem: GivenProblem, placed: PlacedGiven, objective: str
) -> tuple[PlacedGiven, GivenPlan, Prediction]:
    """Return what was placed with the plan of the shortest step; that plan divided, and its prediction.

    Raises:
        InfeasibleError: where no plan fits its units, however its batch is divided.
    """
    rivals = placed.rivals or ((placed.plan, placed.value),)
    steps = [(*divided, value) for plan, value in rivals if (divided := choose_micro_batch(problem, plan)) is not None]
    if not steps:
        return _first_that_fits(problem, placed, objective)
    plan, prediction, value = min(steps, key=lambda step: step[1].step_s)
    notes = placed.notes
    if value > rivals[0][1]:
        least = 0.0 if _costs_nothing(problem, rivals[0][0], objective) else rivals[0][1]
        best = OBJECTIVES[objective].describe(least, problem.batch, problem.known_pool.currency)
        notes = (*notes, f"a plan of {best} takes {format_seconds(steps[0][1].step_s)} a step, and this one less")
    return _priced(problem, replace(placed, plan=plan, value=value, notes=notes), objective), plan, prediction


def _first_that_fits(
    problem: GivenProblem, placed: PlacedGiven, objective: str
) -> tuple[PlacedGiven, GivenPlan, Prediction]:
    """Return the first of the other plans that fits its units; they come in the order of their values."""
    tried = [placed.plan]
    for rival in placed.others():
        divided = choose_micro_batch(problem, rival.plan)
        if divided is not None:
            plan, prediction = divided
            found = replace(placed, plan=plan, value=rival.value, bound=max(placed.bound, rival.bound))
            return _priced(problem, found, objective), plan, prediction
        tried.append(rival.plan)
    raise InfeasibleError(_too_large(problem, tried))


def choose_of_steps(
    problem: GivenProblem, placed: PlacedGiven, request: Request
) -> tuple[PlacedGiven, GivenPlan, Prediction]:
    """Return what was placed for its step with the plan of the best predicted one; that plan, and its prediction.

    Raises:
        InfeasibleError: where no plan fits its units, or none reaches the floor.
    """
    best, bound = _Stepped.best(problem, placed.steps, request), placed.bound
    tried = [placed.plan]
    for rival in placed.others() if best is None or bound < best.value * (1 - _ROUNDING) else ():
        if best is not None and rival.bound >= best.value:
            bound = best.value
            break
        tried.append(rival.plan)
        found = _Stepped.best(problem, [(rival.plan, rival.price_per_hour)], request)
        best = min(filter(None, (best, found)), key=attrgetter("rank"), default=None)
    if best is None:
        raise InfeasibleError(_too_large(problem, tried))
    if best.value == float("inf"):
        floor, reached = format_rate(request.min_throughput), format_rate(best.prediction.samples_per_s)
        raise InfeasibleError(
            f"problem {shown(problem.name)}: no plan was found that reaches the floor of {floor} with "
            f"{ONE_BATCH_ALONE}: the quickest predicted step makes {reached}; ask for less (--min-throughput), or for "
            f"--reading steady-state"
        )
    placed = replace(placed, plan=best.plan, value=best.value, bound=min(bound, best.value))
    return _priced(problem, placed, request.objective), best.plan, best.prediction


@dataclass(frozen=True, slots=True)
class _Stepped:
    """A plan with its predicted step; its value is inf if the step misses the floor."""

    plan: GivenPlan
    prediction: Prediction
    value: float

    @property
    def rank(self) -> tuple[float, float]:
        """Return what plans are compared by."""
        return self.value, self.prediction.step_s

    @classmethod
    def best(
        cls, problem: GivenProblem, plans: Sequence[tuple[GivenPlan, float]], request: Request
    ) -> "_Stepped | None":
        """Predict plans with their prices per hour and return the best; None if none of them fits its units."""
        objective, found = OBJECTIVES[request.objective], list[_Stepped]()
        for plan, price_per_hour in plans:
            for schedule in (TRAINING_SCHEDULES if problem.training else INFERENCE_SCHEDULES)[::-1]:  # 1F1B holds less
                divided = choose_micro_batch(problem, replace(plan, schedule=schedule))
                if divided is not None:
                    step_s = divided[1].step_s
                    paid = objective.paid(price_per_hour, rate(problem.batch, step_s))
                    is_quick = step_s <= _longest_step_s(problem, request)
                    value = (step_s if paid is None else paid) if is_quick else float("inf")
                    found.append(cls(*divided, value))
        return min(found, key=attrgetter("rank"), default=None)


def _costs_nothing(problem: GivenProblem, plan: GivenPlan, objective: str) -> bool:
    """Return whether a plan whose objective is money has units without a price alone."""
    names = {each.device for stage in plan.stages for each in stage.replicas}
    is_free = all(problem.known_pool.device_type(name).price_per_hour == 0 for name in names)
    return is_free and OBJECTIVES[objective].paid(1.0, 1.0) is not None


def _priced(problem: GivenProblem, placed: PlacedGiven, objective: str) -> PlacedGiven:
    """Return what was placed as it costs, where it costs nothing: a search gives free units a price of its own."""
    if not _costs_nothing(problem, placed.plan, objective):
        return placed
    names = dict.fromkeys(shown(each.device) for stage in placed.plan.stages for each in stage.replicas)
    note = (
        f"the pool has no price of {', '.join(names)}: the plan costs nothing, and of such plans one with few hours of "
        f"units was looked for; give a price, or ask for --objective throughput"
    )
    return replace(placed, value=0.0, bound=0.0, notes=(*placed.notes, note))


def _longest_step_s(problem: GivenProblem, request: Request) -> float:
    """Return how long a step may last by the floor; inf without one."""
    floor = request.min_throughput
    return problem.batch / floor * (1 + FLOOR_TOLERANCE) if floor > 0 else float("inf")


def choose_micro_batch(problem: GivenProblem, plan: GivenPlan) -> tuple[GivenPlan, Prediction] | None:
    """Return the plan with the best size of a micro-batch that fits, and its prediction; None where none fits.

    Where no usual size fits, the largest that does is taken. Batches of one replica each are never divided.
    """
    if problem.batch_of == REPLICA:
        return plan, predict_step(problem, plan)
    widest = max(stage.width for stage in plan.stages)
    counts_of = training_counts if problem.training else micro_batch_counts
    counts = [count for count in counts_of(plan.batch, widest) if count <= _most(plan)] or [1]
    predicted = [_divided(problem, plan, count) for count in counts]
    fitting = [pair for pair in predicted if pair[1].fits]
    if fitting:
        return min(fitting, key=lambda pair: pair[1].step_s)
    smaller = (count for count in range(counts[-1] + 1, _most(plan) + 1) if plan.batch % count == 0)
    found = (_divided(problem, plan, count) for count in smaller)
    return next((pair for pair in found if pair[1].fits), None)


def _divided(problem: GivenProblem, plan: GivenPlan, count: int) -> tuple[GivenPlan, Prediction]:
    divided = replace(plan, micro_batch=plan.batch // count)
    return divided, predict_step(problem, divided)


def _most(plan: GivenPlan) -> int:
    """Return how many micro-batches can be simulated."""
    return min(plan.batch, MOST_ACTIONS // len(plan.stages))


def _too_large(problem: GivenProblem, plans: Sequence[GivenPlan]) -> str:
    """Say how much memory the plan that lacks least needs with its smallest micro-batch."""
    smallest = [max(count for count in range(1, _most(plan) + 1) if plan.batch % count == 0) for plan in plans]
    divided = [_divided(problem, plan, count) for plan, count in zip(plans, smallest, strict=True)]
    plan, prediction = min(divided, key=lambda pair: _excess(pair[1]))
    needs: dict[str, float] = {}
    for stage in prediction.stages:
        for kind, held, there in zip(stage.stage.replicas, stage.held_bytes, stage.memory_bytes, strict=True):
            if held > there:
                needs[kind.device] = max(held, needs.get(kind.device, 0.0))
    lacks = " and ".join(
        f"{math.ceil(held):,} B on {shown(name)}, which has "
        f"{format_bytes(problem.known_pool.device_type(name).memory_bytes)}"
        for name, held in needs.items()
    )
    return (
        f"problem {shown(problem.name)}: no plan was found that fits: with micro-batches of "
        f"{counted(plan.micro_batch, 'sample')} the one that lacks least holds {lacks}. Fix: take types with that much"
    )


def _excess(prediction: Prediction) -> float:
    """Return the most that a unit holds, in parts of what it has."""
    return max(
        held / there
        for stage in prediction.stages
        for held, there in zip(stage.held_bytes, stage.memory_bytes, strict=True)
    )
