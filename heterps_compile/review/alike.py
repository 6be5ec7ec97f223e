"""The layers that are interchangeable with one, how the stages share them, and where cuts among them could stand.

Left out: which layers are interchangeable (``cost/interchangeable.py``), how they are dealt
(``passes/placement/deal_alike.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.interchangeable import class_of
from heterps_compile.cost.objective import OBJECTIVES, Objective
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.cost.server_cost import UNITS_ALONE, Pricing
from heterps_compile.units import counted, format_percent

from .moves import shifted

_SAME = 1e-9  # relative


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut among interchangeable layers.

    Attributes:
        stage: The stage that begins there.
        places: Where it could stand among them, the other cuts where they are: by how many layers later, 0 for here.
        values: The plan's value with the cut there; inf where that is no plan.
        equal: Those of the places at which the plan is worth the same.
        reason: Why it stands here.
    """

    stage: int
    places: tuple[int, ...]
    values: tuple[float, ...]
    equal: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Alike:
    """The class of a layer.

    Attributes:
        layers: Names of all its layers, in order.
        shares: How many of them each stage has, by its index.
        cuts: Those among them at either end of the layer's stage.
    """

    layers: tuple[str, ...]
    shares: tuple[tuple[int, int], ...]
    cuts: tuple[Cut, ...]


def alike_layers(
    problem: Problem, placement: Placement, index: int, alike: Sequence[int], pricing: Pricing = UNITS_ALONE
) -> Alike | None:
    """Return what is known of the class of a layer; None where it is interchangeable with none."""
    same = class_of(alike, index)
    if len(same) == 1:
        return None
    starts = placement.starts()
    stage_of = [max(s for s, start in enumerate(starts) if start <= i) for i in same]
    shares = tuple((stage, stage_of.count(stage)) for stage in dict.fromkeys(stage_of))
    mine = max(s for s, start in enumerate(starts) if start <= index)
    among = [
        stage
        for stage in (mine, mine + 1)
        if 0 < stage < len(starts) and {starts[stage] - 1, starts[stage]} <= set(same)
    ]
    cuts = tuple(_cut(problem, placement, stage, set(same), pricing) for stage in among)
    return Alike(tuple(problem.layer_names[i] for i in same), shares, cuts)


def _cut(problem: Problem, placement: Placement, stage: int, same: set[int], pricing: Pricing) -> Cut:
    bounds = (*placement.starts(), problem.layer_count)
    here, first, last = bounds[stage], bounds[stage], bounds[stage]
    while first - 1 > bounds[stage - 1] and first - 2 in same:
        first -= 1
    while last + 1 < bounds[stage + 1] and last + 1 in same:
        last += 1
    tried = [shifted(placement, stage, place) for place in range(first, last + 1)]
    values = [float(value) for value in pricing.values(problem, tried)]
    now = values[here - first]
    places = tuple(range(first - here, last - here + 1))
    equal = tuple(by for by, value in zip(places, values, strict=True) if abs(value - now) <= _SAME * now)
    times = {by: _times(problem, tried[by - places[0]]) for by in equal}
    others = [(value, by) for value, by in zip(values, places, strict=True) if by not in equal]
    reason = _reason(OBJECTIVES[problem.objective], stage, times, others, now)
    return Cut(stage, places, tuple(values), equal, reason)


def _times(problem: Problem, placement: Placement) -> tuple[float, ...]:
    times = (stage.time_s for stage in detail(problem, placement).stages)
    return tuple(sorted((float(f"{time_s:.9g}") for time_s in times), reverse=True))


def _reason(
    objective: Objective, stage: int, times: dict[int, tuple[float, ...]], others: list[tuple[float, int]], now: float
) -> str:
    """Say why a cut stands where it does: no other place is as good, or it is the most even of those that are."""
    if len(times) > 1:
        best = min(times.values())
        if times[0] == best:
            return "the plan is worth the same at each of these, and here the stages' times are the most even"
        by = next(by for by, found in times.items() if found == best)
        moved = f"{counted(abs(by), 'layer')} {'later' if by > 0 else 'earlier'}"
        return f"the plan is worth the same at each of these; the stages' times are more even {moved}"
    value, by = min(others, default=(float("inf"), 0))
    if value == float("inf"):
        return "no other place among them makes a plan"
    moved = f"{counted(abs(by), 'layer')} {'later' if by > 0 else 'earlier'}"
    change = -objective.better_by(now, value) if now > 0 else 0.0
    if change < 0:
        return f"the plan is {format_percent(-100 * change)} better with stage {stage} {moved}"
    return f"at the next best, {moved}, the plan is {format_percent(100 * change)} worse"
