"""Plan a problem with given costs, for the objective of its request.

Batches of a step are placed by the methods that place models, and proven as they are. Batches of one replica each are
planned for throughput, on the one type of the pool that has times (``replicate_stages.py``). Units of other
device types are added to stages where that is asked for (``placement/mix_types.py``).

Left out: how large a micro-batch is, which the simulated step decides (``prediction/choose_micro_batch.py``).
"""

from dataclasses import replace
from functools import partial

import numpy as np

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.plan.request import ALONE, OPTIONS, STEADY, Request
from heterps_compile.problem_file.extrapolated import layer_notes
from heterps_compile.problem_file.given_plan import has_units
from heterps_compile.problem_file.given_problem import REPLICA, GivenProblem
from heterps_compile.problem_file.pose_given import PosedGiven, mixed_plan_of, pose_given, refuse_what_means_nothing
from heterps_compile.problem_file.problem_laws import shown
from heterps_compile.units import counted, format_percent

from .degree_shares import ONE_DEGREE, search_shares
from .place_given_steps import is_quicker_divided, place_given_steps
from .place_layers import run_method
from .placement.method import proves
from .placement.methods import find_method
from .placement.mix_types import mix_types
from .placement.proof.certificate import certify
from .replicate_stages import replicate_stages
from .rivals_of_given import PlacedGiven, Rival, best_of_stage_counts, every_rival, is_small, rival, roomy_rivals
from .rules_of_given import plan_with_rules, refuse_given_rules, with_given_rules

THROUGHPUT = "throughput"
_PROOF_S = 20.0
_LEAST_S = 0.05  # for each of the searches that share a time limit
_PLAIN_SHARE = 0.3  # of a time limit, for a plan whose stages have one type each
_MOST_RIVALS = 12
_GAIN = 1e-6  # relative
_NO_GAIN = "stages of several device types were searched too, and none is better"


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
    of_replicas, began = given.batch_of == REPLICA and request.objective == THROUGHPUT, now_s()
    every_degree = not of_replicas and _searches_degrees(given, request)
    if request.reading == ALONE and (request.mixed_stages or given.batch_of == REPLICA):
        what = "batches of one replica each are" if given.batch_of == REPLICA else "--mixed-stages is"
        raise InputError(
            f"problem {shown(given.name)}: {what} looked at in the steady state alone; leave out --reading {ALONE}"
        )
    deadline = Deadline.after(request.time_limit_s)
    if of_replicas:
        _refuse_of_replicas(given, request)
        placed = replicate_stages(given, deadline)
    else:
        placed = _placed(given, request, deadline, every_degree=every_degree)
    placed = replace(placed, search_s=now_s() - began)
    if not request.is_all_reduced:
        rivals = (replace(each, plan=plan_with_rules(given, request, each.plan)) for each in placed.rivals)
        placed = replace(placed, rivals=tuple(rivals))
    notes, holds_for = list(placed.notes), placed.holds_for
    if _has_degrees(given) and not of_replicas and not every_degree:
        notes.append(
            f"{ONE_DEGREE}; all are options in the steady state, of methods that prove, without --mixed-stages, "
            "--sync, --allow and machines rented whole"
        )
        holds_for += ", with one degree of tensor parallelism a type"
    if request.reading != ALONE and not of_replicas:
        notes += [f"in the steady state, {note}" for note in layer_notes(given, placed.plan.stages, given.batch)]
    if given.tables:
        tables = counted(len(given.tables), "table")
        notes.append(
            f"stages hold {tables} that servers could hold: a search over problem files puts none there, a given plan "
            "may"
        )
    return replace(placed, notes=tuple(notes), holds_for=holds_for)


def _placed(given: GivenProblem, request: Request, deadline: Deadline, *, every_degree: bool) -> PlacedGiven:
    mixed_stages = request.mixed_stages
    posed = with_given_rules(given, request, pose_given(given, request, every_degree=every_degree))
    method = find_method(request.method)
    share_s = None if request.time_limit_s is None else request.time_limit_s * (_PLAIN_SHARE if mixed_stages else 1.0)
    within = deadline if share_s is None else deadline.within(share_s)

    def search(problem: Problem) -> SearchResult | InfeasibleError:
        limit_s = None if share_s is None else max(within.left_s(), _LEAST_S)
        return run_method(method, problem, seed=request.seed, time_limit_s=limit_s)

    found, own = search_shares(given, posed, search) if every_degree else (search(posed.problem), posed)
    is_open = given.training and request.objective == THROUGHPUT and request.reading != STEADY
    counts: dict[Placement, Rival] = {}
    if is_open and isinstance(found, SearchResult):
        counts = _of_stage_counts(given, posed, found, deadline)
    if mixed_stages:
        return _mixed(given, posed, found, list(counts.values()), deadline, reading=request.reading)
    if isinstance(found, InfeasibleError):
        if request.reading == ALONE and request.min_throughput > 0 and is_quicker_divided(given, posed):
            raise InfeasibleError(
                f"{found}; that is of batches undivided, and micro-batches of few samples are quicker here, so that a "
                f"step may reach more: ask for less (--min-throughput), and see what its plan reaches"
            ) from found
        raise found
    if not proves(method):
        found = certify(own.problem, found, min(_PROOF_S, max(0.0, deadline.left_s())))
    if request.reading == ALONE:
        return place_given_steps(given, posed, found, list(counts), deadline)
    rivals = [replace(rival(given, own, found.placement), value=found.value), *counts.values()]
    others = every_rival if is_small(posed.problem) else roomy_rivals
    return PlacedGiven(
        tuple(sorted(rivals, key=lambda each: each.value)),
        found.bound,
        "plans that keep the layers in this order, in the steady state",
        found.method,
        notes=found.notes,
        others=partial(others, given, posed, deadline),
    )


def _has_degrees(given: GivenProblem) -> bool:
    return any(len(layer.by_group) > len({device for device, _ in layer.by_group}) for layer in given.layers)


def _searches_degrees(given: GivenProblem, request: Request) -> bool:
    """Check if degrees are options: of rings, units rented alone, one type a stage, and methods that prove bounds."""
    is_plain = request.is_all_reduced and not request.mixed_stages and request.reading != ALONE
    is_alone = all(device.rented_together == 1 for device in given.known_pool.device_types)
    return is_plain and is_alone and _has_degrees(given) and proves(find_method(request.method))


def _of_stage_counts(
    given: GivenProblem, posed: PosedGiven, found: SearchResult, deadline: Deadline
) -> dict[Placement, Rival]:
    """Find the best plans of one stage, two and so on, whose steps may be shorter."""
    others = best_of_stage_counts(posed, deadline, is_roomy=False)
    rivals = {each: rival(given, posed, each) for each in others if each != found.placement}
    return {each: own for each, own in rivals.items() if has_units(given, own.plan)}


def _mixed(
    given: GivenProblem,
    posed: PosedGiven,
    plain: SearchResult | InfeasibleError,
    of_counts: list[Rival],
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
    rivals = [Rival(mixed_plan_of(given, posed, plan), value) for plan, value in no_worse[:_MOST_RIVALS]]
    return PlacedGiven(
        tuple(sorted([*rivals, *of_counts], key=lambda each: each.value)),
        found.bound,
        "plans that keep the layers in this order, with one device type or several in a stage, in the steady state",
        "mixed-stages",
        notes=(note, *found.notes),
    )


def _refuse_of_replicas(given: GivenProblem, request: Request) -> None:
    """Refuse what batches of one replica each are not planned for."""
    asked, usual = request.asked(), Request().asked()
    for name in ("mixed_stages", "min_throughput", "budget", "min_stages", "max_stages", "method", "seed"):
        if asked[name] != usual[name]:
            raise InputError(
                f"problem {shown(given.name)}: {OPTIONS[name].word} is not looked at where batches are of one replica "
                "each; leave it out"
            )
