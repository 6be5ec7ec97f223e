"""Plan a problem with given costs, for the objective of its request.

Batches of a step are placed by the methods that place models, and proven as they are. Batches of one replica each are
planned for throughput, on the one type of the pool that has times (``replicate_stages.py``). Units of other
device types are added to stages where that is asked for (``placement/mix_types.py``).

Left out: how large a micro-batch is, which the simulated step decides (``prediction/choose_micro_batch.py``).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from heterps_compile.cost.evaluate import detail, evaluate_one
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.plan.request import ALONE, STEADY, Request
from heterps_compile.problem_file.extrapolated import layer_notes
from heterps_compile.problem_file.given_plan import GivenPlan, has_units
from heterps_compile.problem_file.given_problem import REPLICA, GivenProblem
from heterps_compile.problem_file.pose_given import (
    PosedGiven,
    mixed_plan_of,
    plan_of,
    pose_given,
    refuse_what_means_nothing,
)
from heterps_compile.problem_file.problem_laws import shown
from heterps_compile.schedule.readings import ONE_BATCH_ALONE
from heterps_compile.units import counted, format_percent, format_seconds

from .degree_shares import ONE_DEGREE, search_shares
from .place_given_steps import is_quicker_divided, place_given_steps
from .place_layers import run_method
from .placement.method import proves
from .placement.methods import find_method
from .placement.mix_types import mix_types
from .placement.proof.certificate import certify
from .replicate_stages import replicate_stages
from .rivals_of_given import Rival, best_of_stage_counts, every_rival, is_small, roomy_rivals
from .rules_of_given import plan_with_rules, refuse_given_rules, with_given_rules

THROUGHPUT = "throughput"
_PROOF_S = 20.0
_LEAST_S = 0.05  # for each of the searches that share a time limit
_PLAIN_SHARE = 0.3  # of a time limit, for a plan whose stages have one type each
_MOST_RIVALS = 12
_GAIN = 1e-6  # relative
_NO_GAIN = "stages of several device types were searched too, and none is better"


@dataclass(frozen=True, slots=True)
class PlacedGiven:
    """A plan of a problem with given costs.

    Attributes:
        plan: Stages and replicas; the batch undivided.
        value: Of the objective, by the steady state.
        bound: No plan of those that were looked at has a lower value.
        holds_for: Which these are, in words.
        method: That found it.
        search_s: Seconds it took, the proof included.
        notes: What the reader should know.
        steps: Plans with their prices per hour, of which the one of the best step is to be taken, and whose value is
            that of the step; none where the value is of the steady state.
        rivals: Plans with their values, the best first, of which the one of the shortest step is to be taken. None is
            worse than the best one whose stages have one type each, but for the throughput of training, whose steps do
            not overlap. None where there is one plan alone.
        others: Yields further plans, the lowest value first: the first that fits is taken if none of these does. With a
            step's value to minimise all plans of a small problem, by lower bounds on their values.
    """

    plan: GivenPlan
    value: float
    bound: float
    holds_for: str
    method: str
    search_s: float
    notes: tuple[str, ...] = ()
    rivals: tuple[tuple[GivenPlan, float], ...] = ()
    steps: tuple[tuple[GivenPlan, float], ...] = ()
    others: Callable[[], Iterator[Rival]] = lambda: iter(())


def place_given(given: GivenProblem, request: Request) -> PlacedGiven:
    """Return the best plan found, with a proven bound; stages hold all tables in it, which a note says.

    Args:
        given: The problem.
        request: What is asked for.

    Raises:
        InputError: where the request asks for what the problem does not have.
        InfeasibleError: where no plan meets the request.
        UnknownNameError: for an unknown method.
    """
    refuse_what_means_nothing(given, request)
    refuse_given_rules(given, request)
    of_replicas = given.batch_of == REPLICA and request.objective == THROUGHPUT
    every_degree = not of_replicas and _searches_degrees(given, request)
    placed = with_chosen_rules(given, request, _placed(given, request, every_degree=every_degree))
    if _has_degrees(given) and not of_replicas and not every_degree:
        note = (
            f"{ONE_DEGREE}; all are options in the steady state, of methods that prove, without --mixed-stages, "
            "--sync, --allow and machines rented whole"
        )
        holds_for = f"{placed.holds_for}, with one degree of tensor parallelism a type"
        placed = replace(placed, notes=(*placed.notes, note), holds_for=holds_for)
    if request.reading != ALONE and not of_replicas:
        undivided = layer_notes(given, placed.plan.stages, given.batch)
        placed = replace(placed, notes=(*placed.notes, *(f"in the steady state, {note}" for note in undivided)))
    if not given.tables:
        return placed
    tables = counted(len(given.tables), "table")
    note = (
        f"stages hold {tables} that servers could hold: a search over problem files puts none there, a given plan may"
    )
    return replace(placed, notes=(*placed.notes, note))


def with_chosen_rules(given: GivenProblem, request: Request, placed: PlacedGiven) -> PlacedGiven:
    """Return what was placed with the rules of its stages in all plans."""
    if request.is_all_reduced:
        return placed

    def ruled(plans: tuple[tuple[GivenPlan, float], ...]) -> tuple[tuple[GivenPlan, float], ...]:
        return tuple((plan_with_rules(given, request, plan), value) for plan, value in plans)

    plan = plan_with_rules(given, request, placed.plan)
    return replace(placed, plan=plan, rivals=ruled(placed.rivals), steps=ruled(placed.steps))


def _placed(given: GivenProblem, request: Request, *, every_degree: bool) -> PlacedGiven:
    began, deadline, mixed_stages = now_s(), Deadline.after(request.time_limit_s), request.mixed_stages
    if request.reading == ALONE and (mixed_stages or given.batch_of == REPLICA):
        what = "batches of one replica each are" if given.batch_of == REPLICA else "--mixed-stages is"
        raise InputError(
            f"problem {shown(given.name)}: {what} looked at in the steady state alone; leave out --reading {ALONE}"
        )
    if given.batch_of == REPLICA and request.objective == THROUGHPUT:
        if mixed_stages:
            raise InputError(
                f"problem {shown(given.name)}: --mixed-stages is not looked at where batches are of one replica each; "
                "leave it out"
            )
        return _of_replicas(given, request, began, deadline)
    posed = with_given_rules(given, request, pose_given(given, request, every_degree=every_degree))
    method = find_method(request.method)
    share_s = None if request.time_limit_s is None else request.time_limit_s * (_PLAIN_SHARE if mixed_stages else 1.0)
    within = deadline if share_s is None else deadline.within(share_s)

    def search(problem: Problem) -> SearchResult | InfeasibleError:
        limit_s = None if share_s is None else max(within.left_s(), _LEAST_S)
        return run_method(method, problem, seed=request.seed, time_limit_s=limit_s)

    found, own = search_shares(given, posed, search) if every_degree else (search(posed.problem), posed)
    is_open = given.training and request.objective == THROUGHPUT and request.reading != STEADY
    of_counts = _of_stage_counts(given, posed, found, deadline) if is_open else []
    if mixed_stages:
        return replace(
            _mixed(given, posed, found, of_counts, deadline, reading=request.reading), search_s=now_s() - began
        )
    if isinstance(found, InfeasibleError):
        if request.reading == ALONE and request.min_throughput > 0 and is_quicker_divided(given, posed):
            raise InfeasibleError(
                f"{found}; that is of batches undivided, and micro-batches of few samples are quicker here, so that a "
                f"step may reach more: ask for less (--min-throughput), and see what its plan reaches"
            ) from found
        raise found
    if not proves(method):
        found = certify(own.problem, found, min(_PROOF_S, max(0.0, deadline.left_s())))
    plan = _plan(given, own, found.placement)
    if request.reading == ALONE:
        placed = _for_step(given, posed, found, [placement for placement, _ in of_counts], deadline)
        return replace(placed, plan=placed.plan if placed.steps else plan, search_s=now_s() - began)
    rivals = [(plan, found.value), *((_plan(given, posed, placement), value) for placement, value in of_counts)]
    plans = tuple(sorted(rivals, key=lambda rival: rival[1]))
    others = every_rival if is_small(posed.problem) else roomy_rivals
    return PlacedGiven(
        plan,
        found.value,
        found.bound,
        "plans that keep the layers in this order, in the steady state",
        found.method,
        now_s() - began,
        found.notes,
        plans if of_counts else (),
        others=partial(others, given, posed, deadline),
    )


def _has_degrees(given: GivenProblem) -> bool:
    return any(len(layer.by_group) > len({device for device, _ in layer.by_group}) for layer in given.layers)


def _searches_degrees(given: GivenProblem, request: Request) -> bool:
    """Check if degrees are options: of rings, units rented alone, one type a stage, and methods that prove bounds."""
    is_plain = request.is_all_reduced and not request.mixed_stages and request.reading != ALONE
    is_alone = all(device.rented_together == 1 for device in given.known_pool.device_types)
    return is_plain and is_alone and _has_degrees(given) and proves(find_method(request.method))


def _for_step(
    given: GivenProblem, posed: PosedGiven, found: SearchResult, of_counts: list[Placement], deadline: Deadline
) -> PlacedGiven:
    """Minimise the step, from the best plans of the steady state."""
    steps = place_given_steps(given, posed, [found.placement, *of_counts], deadline, seed=found.seed)
    most = counted(steps.most_micro_batches, "micro-batch")
    return PlacedGiven(
        steps.plans[0][0] if steps.plans else _plan(given, posed, found.placement),
        np.inf,
        steps.bound,
        f"plans that keep the layers in this order, in at most {most}, {ONE_BATCH_ALONE}",
        found.method,
        0.0,
        (*found.notes, *steps.notes),
        steps=steps.plans,
        others=steps.others,
    )


def _plan(given: GivenProblem, posed: PosedGiven, placement: Placement) -> GivenPlan:
    stages = detail(posed.problem, placement).stages
    return plan_of(given, posed, placement, [stage.replicas for stage in stages])


def _of_stage_counts(
    given: GivenProblem, posed: PosedGiven, found: SearchResult | InfeasibleError, deadline: Deadline
) -> list[tuple[Placement, float]]:
    """Find the best plans of one stage, two and so on, whose steps may be shorter."""
    if isinstance(found, InfeasibleError):
        return []
    others = best_of_stage_counts(posed, deadline, is_roomy=False)
    return [
        (each, evaluate_one(posed.problem, each))
        for each in others
        if each != found.placement and has_units(given, _plan(given, posed, each))
    ]


def _mixed(
    given: GivenProblem,
    posed: PosedGiven,
    plain: SearchResult | InfeasibleError,
    of_counts: list[tuple[Placement, float]],
    deadline: Deadline,
    *,
    reading: str | None,
) -> PlacedGiven:
    """Return the best plan whose stages may have several device types, from the best one without such stages."""
    start = plain.placement if isinstance(plain, SearchResult) else None
    most = plain.value * (1 + _GAIN) if isinstance(plain, SearchResult) else np.inf
    found = mix_types(posed.problem, start, min(_PROOF_S, max(0.0, deadline.left_s())))
    if not found.plans:
        if isinstance(plain, InfeasibleError) and np.isinf(found.bound):
            raise InfeasibleError(f"{plain}; stages of several device types do not help")
        raise InfeasibleError(
            f"{plain}; with stages of several device types none was found, and none proven impossible (--time-limit)"
        )
    if isinstance(plain, SearchResult):
        gain = 1 - found.value / plain.value
        better = f"{format_percent(100 * gain)} {OBJECTIVES[posed.problem.objective].better}"
        note = f"{better} than the best plan found whose stages have one type each" if gain > _GAIN else _NO_GAIN
    else:
        note = f"no plan was found whose stages have one type each: {plain}"
    if reading == STEADY:
        most = found.value * (1 + _GAIN)
    no_worse = [(plan, value) for plan, value in found.plans if value <= most or of_counts]
    plans = [(mixed_plan_of(given, posed, plan), value) for plan, value in no_worse[:_MOST_RIVALS]]
    plans += [(_plan(given, posed, placement), value) for placement, value in of_counts]
    rivals = tuple(sorted(plans, key=lambda rival: rival[1]))
    return PlacedGiven(
        rivals[0][0],
        found.value,
        found.bound,
        "plans that keep the layers in this order, with one device type or several in a stage, in the steady state",
        "mixed-stages",
        0.0,
        (note, *found.notes),
        rivals,
    )


def _of_replicas(given: GivenProblem, request: Request, began: float, deadline: Deadline) -> PlacedGiven:
    for words, asked in (
        ("--min-throughput", request.min_throughput),
        ("--budget", request.budget_per_hour),
        ("--min-stages", request.min_stages > 1),
        ("--max-stages", request.max_stages),
        ("--method", request.method != Request().method),
        ("--seed", request.seed),
    ):
        if asked:
            raise InputError(
                f"problem {shown(given.name)}: {words} is not looked at where batches are of one replica each; leave "
                "it out"
            )
    devices = {device for layer in given.layers for device, _ in layer.by_group}
    if len(devices) != 1:
        raise InputError(
            f"problem {shown(given.name)} has times on {', '.join(map(shown, sorted(devices)[:8]))}; batches of one "
            "replica each are planned on one device type: give a pool with one of them"
        )
    [device] = devices
    found = replicate_stages(given, device, given.known_pool.device_type(device).max_units, deadline)
    every = "all divisions of the layers into stages" if found.is_every_order else "the orders that were looked at"
    notes: list[str] = []
    if found.batch_s < found.alone_s < np.inf:
        notes = [f"with the least degree of tensor parallelism alone a batch takes {format_seconds(found.alone_s)}"]
    return PlacedGiven(
        found.plan,
        found.batch_s,
        found.bound_s,
        f"{every} ({found.down_sets:,} down-sets)",
        "replicate-stages",
        now_s() - began,
        tuple(notes),
    )
