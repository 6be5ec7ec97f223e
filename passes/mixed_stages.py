"""Plans whose stages may have replicas of several device types, beside the best one whose stages have one type each.

The plan of one type a stage is found first, and its order of the layers is kept. Units of other types are added to it
in the steady state (``placement/mix_types.py``); where values are of one batch alone, the plan of the shortest or
cheapest step is taken of those on the way, each with the micro-batches and the schedule that suit it. A plan must fit
its units as its schedule holds it, and is taken where it is better than the one it is compared with.

The bound is that of the work of all plans, of one type a stage or several; a step takes no less.

Left out: other orders of the layers; tables on servers; batches that a model fixes, which replicas cannot share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.evaluate import FLOOR_TOLERANCE, detail
from heterps_compile.cost.finders import MIXED
from heterps_compile.cost.mixed_units import MixedPlacement, MixedWorth, detail_of, worth_of
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.plan.placed_stages import stages_of
from heterps_compile.schedule.shortest_step import Step
from heterps_compile.units import format_percent

from .choose_schedule import step_of
from .deadline import Deadline
from .drafts import Fused, Placed, Posed, advance
from .placement.mix_types import mix_types
from .placement.other_question import has_other_question, unanswered
from .provision import Provision
from .rules_of_stages import with_request

PLAIN_SHARE = 0.5
"""Of a time limit, for the plan whose stages have one type each."""

_MOST_S = 20.0
_MOST_TRIED = 12  # plans whose steps are simulated, of each search
_SHARE_OF_STEPS = 0.5  # of the time that is left, for the plans of the steady state, where values are of steps
_SLOWER = 1.3  # a step than a batch in the steady state, where no plan tells
_GAIN = 1e-6  # relative
_NO_PART = 1e-9  # of a batch
_NO_GAIN = "stages of several device types were searched too, and none is better"
_ONE_TYPE = "stages of several device types are left out of it"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A plan of several types a stage, and its value in the reading that is asked for."""

    placement: MixedPlacement
    value: float


def refuse_mixed(draft: Posed) -> None:
    """Refuse what stages of several device types are not planned with.

    Raises:
        InputError: naming it.
    """
    if draft.problem.served_s is not None:
        raise InputError(
            "tables of this model lie on servers, which are not planned together with stages of several device types; "
            "leave --mixed-stages out"
        )
    if not draft.graph.is_divisible:
        way_out = "" if draft.graph.mixes else "open it (--batch N), or "
        raise InputError(
            f"{draft.graph.undivided}, which replicas of several device types cannot share by "
            f"their speed; {way_out}leave --mixed-stages out"
        )


def with_mixed_stages(draft: Posed, plain: Placed | InfeasibleError, limit_s: float | None, factor: float) -> Placed:
    """Return the better of a plan whose stages have one type each and the best found whose stages may have several.

    Args:
        draft: Posed, its layers in the order to keep where there is no plan yet.
        plain: The plan found, or why there is none.
        limit_s: Of the search; None for 20 seconds, and never more.
        factor: What a bound of the steady state is multiplied by to be one of steps, where values are of steps.

    Raises:
        InfeasibleError: where neither is found.
        InputError: as :func:`refuse_mixed`.
    """
    posed = draft if isinstance(plain, InfeasibleError) else plain
    refuse_mixed(posed)
    deadline = Deadline.after(_MOST_S if limit_s is None else min(limit_s, _MOST_S))
    start = plain.search.placement if isinstance(plain, Placed) else None
    share = _SHARE_OF_STEPS if draft.request.minimises_step else 1.0
    found = mix_types(posed.problem, start, share * deadline.left_s())
    bound = found.bound * factor if factor > 0 else 0.0
    plans, stopped = [placement for placement, _ in found.plans], found.notes
    if draft.request.minimises_step and posed.problem.min_throughput > 0:  # a step must be quick enough by itself
        quicker = replace(posed.problem, min_throughput=posed.problem.min_throughput * _slower(plain))
        other = mix_types(quicker, None, deadline.left_s())
        plans += [placement for placement, _ in other.plans]
        stopped = stopped or other.notes
    best = min(_candidates(posed, plans), key=lambda each: each.value, default=None)
    if isinstance(plain, InfeasibleError):
        if best is None:
            raise InfeasibleError(
                f"{plain}; stages of several device types "
                f"{'do not help' if np.isinf(bound) else 'were looked at too, and no plan was found'}"
            )
        result = SearchResult(Placement(()), 0.0, 0.0, draft.request.method, draft.request.seed, 0, 0.0, notes=stopped)
        note = f"no plan was found whose stages have one type each: {plain}"
        return advance(draft, Placed, search=_result(posed, result, best, bound, note))
    search = replace(plain.search, notes=(*plain.search.notes, *stopped))
    if best is None or best.value >= search.value * (1 - _GAIN):
        search = replace(search, notes=(*search.notes, _NO_GAIN))
        return replace(plain, search=_bounded(posed, search, min(bound, search.bound)))
    objective = OBJECTIVES[posed.problem.objective]
    gain = f"{format_percent(100 * objective.better_by(search.value, best.value))} {objective.better}"
    note = f"{gain} than the best plan found whose stages have one type each"
    result = _result(posed, search, best, bound, note)
    if has_other_question(posed.problem):
        result = replace(result, notes=(*result.notes, unanswered(posed.problem, _ONE_TYPE)))
    return replace(plain, search=result, other=None)


def _bounded(draft: Posed, result: SearchResult, bound: float) -> SearchResult:
    """Return a result with a bound: of other orders of the layers nothing is known, where there are others."""
    is_fixed = draft.orders.is_fixed
    return replace(result, bound=bound, bound_of_all_orders=bound if is_fixed else -np.inf, steady_bound=bound)


def _result(draft: Posed, of: SearchResult, best: _Candidate, bound: float, note: str) -> SearchResult:
    """Return the result of a plan of several types a stage."""
    problem = draft.problem
    types = [max(each.types, key=lambda one: one.share).type for each in detail_of(problem, best.placement)]
    ends = (*best.placement.starts[1:], problem.layer_count)
    stages = zip(types, best.placement.starts, ends, strict=True)
    of_layers = tuple(type_ for type_, first, end in stages for _ in range(end - first))
    numbers = np.searchsorted(best.placement.starts, np.arange(problem.layer_count), side="right").tolist()
    result = replace(
        of,
        placement=Placement.of_stages(of_layers, numbers),
        value=best.value,
        step=None,
        found_by=MIXED,
        notes=(*of.notes, note),
        mixed_units=best.placement.units,
    )
    return _bounded(draft, result, min(bound, best.value))


def _slower(plain: Placed | InfeasibleError) -> float:
    """Return by how much longer a step takes than a batch in the steady state, as far as is known."""
    if isinstance(plain, InfeasibleError) or plain.search.step is None:
        return _SLOWER
    stages = detail(plain.problem, plain.search.placement, np.array(plain.search.step.units, np.float64)).stages
    return max(1.0, plain.search.step.step_s / max(stage.time_s for stage in stages)) * (1 + _GAIN)


def _candidates(draft: Posed, plans: Sequence[MixedPlacement]) -> Iterator[_Candidate]:
    """Yield the plans that fit their units as they are held and keep to the limits, with their values."""
    problem, request = draft.problem, draft.request
    mixed = [placement for placement in plans if placement.mixed_stages]
    for drawn, worth, step in mixed_steps(draft, [*mixed[:_MOST_TRIED], *mixed[-_MOST_TRIED:]]):
        if not request.minimises_step:
            yield _Candidate(drawn, worth.value)
        elif problem.batch / step.step_s >= problem.min_throughput * (1 - FLOOR_TOLERANCE):
            paid = OBJECTIVES[problem.objective].paid(worth.price_per_hour, problem.batch / step.step_s)
            yield _Candidate(drawn, step.step_s if paid is None else paid)


def mixed_steps(draft: Posed, mixed: Sequence[MixedPlacement]) -> Iterator[tuple[MixedPlacement, MixedWorth, Step]]:
    """Yield plans of several types a stage, without units that have nothing to do, with what they cost and their steps.

    Those that break a limit, or whose units have no room for their step, are left out.
    """
    problem = draft.problem
    for drawn in dict.fromkeys(_without_idle(problem, placement) for placement in mixed):
        worth = worth_of(problem, drawn)
        if not np.isfinite(worth.value):
            continue
        result = SearchResult(Placement(()), 0.0, 0.0, "", 0, 0, 0.0)
        search = _result(draft, result, _Candidate(drawn, worth.value), 0.0, "")
        placed = advance(draft, Placed, search=search)
        fused = advance(placed, Fused, stages=stages_of(problem, search.placement))
        provisioned = Provision()(fused)
        step = step_of(provisioned if problem.rules is None else with_request(provisioned)).best
        if step.fits:
            yield drawn, worth, step


def _without_idle(problem: Problem, placement: MixedPlacement) -> MixedPlacement:
    """Return a placement without the units that are too slow for their stage to have a part of a batch."""
    rows = []
    for units, stage in zip(placement.units, detail_of(problem, placement), strict=True):
        works = {each.type for each in stage.types if each.share > _NO_PART}
        rows.append(tuple(count if type_ in works else 0 for type_, count in enumerate(units)))
    return replace(placement, units=tuple(rows))
