"""How large a micro-batch of a plan with given costs is, and which of several plans: those of the shortest step.

Left out: the schedule, which is 1F1B; micro-batches of several sizes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, inf
from operator import itemgetter
from typing import NamedTuple

from heterps_compile.cost.evaluate import FLOOR_TOLERANCE
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.rivals_of_given import PlacedGiven, Rival
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
    steps = [(*divided, rival) for rival in placed.rivals if (divided := choose_micro_batch(problem, rival.plan))]
    if not steps:
        tried = [placed.plan]
        for rival in placed.others():
            if divided := choose_micro_batch(problem, rival.plan):
                found = replace(placed, rivals=(rival,), bound=max(placed.bound, rival.bound))
                return _priced(problem, found, objective), *divided
            tried.append(rival.plan)
        raise InfeasibleError(_too_large(problem, tried))
    plan, prediction, best_rival = min(steps, key=lambda step: step[1].step_s)
    notes = placed.notes
    if best_rival.value > placed.value:
        least = 0.0 if _costs_nothing(problem, placed.plan, objective) else placed.value
        best = OBJECTIVES[objective].describe(least, problem.batch, problem.known_pool.currency)
        notes = (*notes, f"a plan of {best} takes {format_seconds(steps[0][1].step_s)} a step, and this one less")
    return _priced(problem, replace(placed, rivals=(best_rival,), notes=notes), objective), plan, prediction


def choose_of_steps(
    problem: GivenProblem, placed: PlacedGiven, request: Request
) -> tuple[PlacedGiven, GivenPlan, Prediction]:
    """Return what was placed for its step with the plan of the best predicted one; that plan, and its prediction.

    Raises:
        InfeasibleError: where no plan fits its units, or none reaches the floor.
    """
    best = min((step for rival in placed.rivals for step in _steps(problem, request, rival)), key=_RANK, default=None)
    bound, tried = placed.bound, [placed.plan]
    for rival in placed.others():
        if best is not None and max(bound, rival.bound) >= best.value * (1 - _ROUNDING):
            bound = best.value
            break
        tried.append(rival.plan)
        steps = (*_steps(problem, request, rival), *filter(None, [best]))
        best = min(steps, key=_RANK, default=None)
    if best is None:
        raise InfeasibleError(_too_large(problem, tried))
    if best.value == inf:
        floor, reached = format_rate(request.min_throughput), format_rate(best.prediction.samples_per_s)
        raise InfeasibleError(
            f"problem {shown(problem.name)}: no plan was found that reaches the floor of {floor} with "
            f"{ONE_BATCH_ALONE}: the quickest predicted step makes {reached}; ask for less (--min-throughput), or for "
            f"--reading steady-state"
        )
    placed = replace(placed, rivals=(Rival(best.plan, best.value),), bound=min(bound, best.value))
    return _priced(problem, placed, request.objective), best.plan, best.prediction


class _Step(NamedTuple):
    """A plan's predicted step; its value is inf below the floor."""

    value: float
    step_s: float
    plan: GivenPlan
    prediction: Prediction


_RANK = itemgetter(0, 1)


def _steps(problem: GivenProblem, request: Request, rival: Rival) -> Iterator[_Step]:
    """Yield a plan's shortest step under each schedule that fits."""
    for schedule in (TRAINING_SCHEDULES if problem.training else INFERENCE_SCHEDULES)[::-1]:  # 1F1B holds less
        if divided := choose_micro_batch(problem, replace(rival.plan, schedule=schedule)):
            step_s, reached = divided[1].step_s, rate(problem.batch, divided[1].step_s)
            paid = OBJECTIVES[request.objective].paid(rival.price_per_hour, reached)
            is_quick = reached * (1 + FLOOR_TOLERANCE) >= request.min_throughput
            yield _Step((step_s if paid is None else paid) if is_quick else inf, step_s, *divided)


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
    return replace(placed, rivals=(Rival(placed.plan, 0.0),), bound=0.0, notes=(*placed.notes, note))


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
    """Name the memory that the plan closest to fitting needs."""
    divided = [
        _divided(problem, plan, max(n for n in range(1, _most(plan) + 1) if plan.batch % n == 0)) for plan in plans
    ]
    plan, prediction = min(divided, key=lambda pair: max(held / there for _, held, there in _held(pair[1])))
    needs: dict[str, float] = {}
    for name, held, _ in filter(lambda each: each[1] > each[2], _held(prediction)):
        needs[name] = max(held, needs.get(name, 0.0))
    lacks = " and ".join(
        f"{ceil(held):,} B on {shown(name)}, which has "
        f"{format_bytes(problem.known_pool.device_type(name).memory_bytes)}"
        for name, held in needs.items()
    )
    return (
        f"problem {shown(problem.name)}: no plan was found that fits: with micro-batches of "
        f"{counted(plan.micro_batch, 'sample')} the one that lacks least holds {lacks}. Fix: take types with that much"
    )


def _held(prediction: Prediction) -> Iterator[tuple[str, float, float]]:
    """Yield device type, bytes held and bytes available of each kind of replica."""
    for stage in prediction.stages:
        for kind, held, there in zip(stage.stage.replicas, stage.held_bytes, stage.memory_bytes, strict=True):
            yield kind.device, held, there
