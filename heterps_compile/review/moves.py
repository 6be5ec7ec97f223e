"""The moves that are open to a layer in the problem that was posed, and what the plan would be worth after each.

A plan's stages are runs of the layers' order, so that these are the moves that lead from one plan to another::

    layer      it goes to another device type alone                  a b [c] d | e f    ->   a b | c | d | e f
    boundary   its stage begins or ends elsewhere                    a b [c d] | e f    ->   a b | c d e f
    alike      it and the layers that are interchangeable with it go to another type, in its stage or everywhere
    kind       all layers of its kind go to another type
    stage      its stage goes to another type
    merge      its stage and a neighbour become one, on the type of either

Every number is that of :mod:`heterps_compile.cost.evaluate`, with the best replicas for the placement, and with its
parameter servers where it has any (:mod:`heterps_compile.cost.server_cost`).

Left out: moves of several boundaries at once (the search tries those), what would make a move win
(``what_decides.py``), the looks of it (``explain_words.py``).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from heterps_compile.cost.evaluate import Fault, PlacementDetail
from heterps_compile.cost.interchangeable import class_of
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.cost.server_cost import UNITS_ALONE, Pricing
from heterps_compile.units import counted, format_bytes, format_money, format_rate

_ROUNDING = 1e-9  # relative


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a placement is worth.

    Attributes:
        placement: It.
        value: The objective; inf where it is no plan.
        throughput: Samples/s; 0 where it is no plan.
        price_per_hour: Of all units and servers; inf where it is no plan.
        units: Device types that it uses, with how many units.
        servers_price_per_hour: Of its parameter servers, which the price has in it; 0 where it has none.
        slowest: Index of the slowest stage.
        slowest_s: Time of a batch there.
        slowest_for: ``"computation"`` or ``"data movement"``, whichever takes that time.
        crossing_bytes: Bytes of a batch that stages receive from others.
        stages: How many there are.
        fault: Why it is no plan; "" where it is one.
    """

    placement: Placement
    value: float
    throughput: float
    price_per_hour: float
    units: tuple[tuple[str, int], ...]
    servers_price_per_hour: float
    slowest: int
    slowest_s: float
    slowest_for: str
    crossing_bytes: float
    stages: int
    fault: str


@dataclass(frozen=True, slots=True)
class Move:
    """One move.

    Attributes:
        kind: Its name in the list above.
        what: It, in words.
        outcome: Of the plan after it.
    """

    kind: str
    what: str
    outcome: Outcome


def outcome_of(problem: Problem, placement: Placement, pricing: Pricing = UNITS_ALONE) -> Outcome:
    """Return what a placement is worth with its best replicas."""
    return outcome_of_detail(problem, placement, pricing.detail(problem, placement))


def outcome_of_detail(problem: Problem, placement: Placement, found: PlacementDetail) -> Outcome:
    """Return what a placement is worth with the replicas and the price that it has."""
    slowest = max(range(len(found.stages)), key=lambda stage: found.stages[stage].time_s)
    of_units = sum(stage.price_per_hour for stage in found.stages) + found.idle_price_per_hour
    servers = 0.0 if found.faults else found.price_per_hour - of_units
    units: dict[str, int] = {}
    for stage in found.stages:
        name = problem.type_names[stage.type]
        units[name] = units.get(name, 0) + stage.replicas
    return Outcome(
        placement=placement,
        value=found.value,
        throughput=found.throughput,
        price_per_hour=found.price_per_hour,
        units=tuple(units.items()),
        servers_price_per_hour=servers if servers > _ROUNDING * found.price_per_hour else 0.0,
        slowest=slowest,
        slowest_s=found.stages[slowest].time_s,
        slowest_for=bound_by(found, slowest),
        crossing_bytes=sum(stage.received_bytes for stage in found.stages),
        stages=len(found.stages),
        fault=fault_of(problem, found),
    )


def bound_by(found: PlacementDetail, stage: int) -> str:
    """Return what takes the time of a stage."""
    return "computation" if found.stages[stage].compute_s >= found.stages[stage].data_s else "data movement"


def moves_of(
    problem: Problem, placement: Placement, index: int, alike: Sequence[int], pricing: Pricing = UNITS_ALONE
) -> tuple[Move, ...]:
    """Return the moves of a layer, the best first, those that make no plan last; each placement once.

    Args:
        problem: The problem.
        placement: The plan's.
        index: The layer.
        alike: The class of every layer, by :func:`~heterps_compile.cost.interchangeable.interchangeable_layers`.
        pricing: What placements cost.
    """
    seen = {_whole(placement)}
    found = []
    for kind, what, moved in _moves(problem, placement, index, alike, pricing):
        if _whole(moved) not in seen:
            seen.add(_whole(moved))
            found.append(Move(kind, what, outcome_of(problem, moved, pricing)))
    return tuple(sorted(found, key=lambda move: move.outcome.value))


def _whole(placement: Placement) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return placement.types, placement.starts()


def _moves(
    problem: Problem, placement: Placement, index: int, alike: Sequence[int], pricing: Pricing
) -> Iterator[tuple[str, str, Placement]]:
    bounds = list(pairwise((*placement.starts(), problem.layer_count)))
    stage = max(s for s, (begin, _) in enumerate(bounds) if begin <= index)
    begin, end = bounds[stage]
    mine = placement.types[index]
    yield from _boundary_moves(problem, placement, index, stage, pricing)
    same = class_of(alike, index)
    here = tuple(i for i in same if begin <= i < end)
    of_kind = tuple(i for i, kind in enumerate(problem.layer_kinds) if kind == problem.layer_kinds[index])
    whole = tuple(range(begin, end))
    for type_, name in enumerate(problem.type_names):
        groups = [
            ("layer", (index,), "the layer alone"),
            ("alike", here, f"the {len(here)} interchangeable layers of stage {stage}"),
            ("alike", same, f"all {len(same)} interchangeable layers"),
            ("kind", of_kind, f"all {counted(len(of_kind), 'layer')} of kind {problem.layer_kinds[index]}"),
            ("stage", whole, f"stage {stage} ({counted(len(whole), 'layer')})"),
        ]
        for kind, group, what in groups:
            may = all(problem.allowed[i, type_] and math.isfinite(problem.compute_s[i, type_]) for i in group)
            if may and any(placement.types[i] != type_ for i in group):
                yield kind, f"{what} on {name!r}", _retyped(problem, placement, group, type_, pricing)
    for other, into in ((stage - 1, "the one before"), (stage + 1, "the one after")):
        if 0 <= other < len(bounds):
            low, high = min(begin, bounds[other][0]), max(end, bounds[other][1])
            cuts = [b for b, _ in bounds if not low < b < high]
            for type_ in dict.fromkeys((placement.types[bounds[other][0]], mine)):
                types = tuple(type_ if low <= i < high else t for i, t in enumerate(placement.types))
                what = f"stage {stage} and {into} in one, on {problem.type_names[type_]!r}"
                yield "merge", what, _of_starts(types, cuts)


def _boundary_moves(
    problem: Problem, placement: Placement, index: int, stage: int, pricing: Pricing
) -> Iterator[tuple[str, str, Placement]]:
    """Yield for both ends of a stage the best other place, and the nearest that moves the layer to the neighbour."""
    starts = list(placement.starts())
    for moved, taking in ((stage, index + 1), (stage + 1, index)):
        if not 0 < moved < len(starts):
            continue
        first, last = starts[moved - 1] + 1, (starts[moved + 1] if moved + 1 < len(starts) else problem.layer_count) - 1
        places = [place for place in range(first, last + 1) if place != starts[moved]]
        if not places:
            continue
        tried = [shifted(placement, moved, place) for place in places]
        values = pricing.values(problem, tried)
        best = min(range(len(places)), key=lambda n: (values[n], abs(places[n] - starts[moved])))
        wanted = [best] if np.isfinite(values[best]) else []
        if taking in places and places.index(taking) != best:
            wanted.append(places.index(taking))
        for number in wanted:
            by = places[number] - starts[moved]
            direction = "later" if by > 0 else "earlier"
            what = f"stage {moved} begins {counted(abs(by), 'layer')} {direction}"
            yield "boundary", what, tried[number]


def shifted(placement: Placement, stage: int, place: int) -> Placement:
    """Return the placement with one stage beginning elsewhere between the stage before and its own end."""
    starts = list(placement.starts())
    old, types = starts[stage], list(placement.types)
    for i in range(min(old, place), max(old, place)):
        types[i] = placement.types[old] if place < old else placement.types[old - 1]
    starts[stage] = place
    return _of_starts(tuple(types), starts)


def _retyped(problem: Problem, placement: Placement, group: Sequence[int], type_: int, pricing: Pricing) -> Placement:
    """Return the placement with some layers on another type: as stages of their own, or joined to equal neighbours."""
    moved, types = set(group), list(placement.types)
    for i in moved:
        types[i] = type_
    apart = _of_starts(tuple(types), list(placement.starts()))
    joined = [p for p in placement.starts() if p == 0 or types[p] != types[p - 1] or not moved & {p - 1, p}]
    together = _of_starts(tuple(types), joined)
    values = pricing.values(problem, [together, apart])
    return apart if values[1] < values[0] else together


def _of_starts(types: tuple[int, ...], starts: Sequence[int]) -> Placement:
    return Placement(types, tuple(p for p in sorted(set(starts)) if p > 0 and types[p] == types[p - 1]))


def fault_of(problem: Problem, found: PlacementDetail) -> str:
    """Return why a placement is no plan, with the numbers of each limit that it breaks; "" where it is one."""
    if found.step_fault:
        return found.step_fault
    told = {
        Fault.FORBIDDEN: _forbidden,
        Fault.UNCUTTABLE: lambda *_: "a layer cannot be cut apart from its neighbour",
        Fault.MEMORY: _memory,
        Fault.FLOOR: _floor,
        Fault.UNITS: _units,
        Fault.BUDGET: _budget,
        Fault.STAGE_COUNT: _stage_count,
    }
    return "; ".join(words(problem, found) for bit, words in told.items() if found.faults & bit)


def _forbidden(problem: Problem, found: PlacementDetail) -> str:
    kept = [
        (i, stage.type)
        for stage in found.stages
        for i in range(stage.first_layer, stage.end_layer)
        if not problem.allowed[i, stage.type] or math.isinf(problem.compute_s[i, stage.type])
    ]
    layer, type_ = kept[0]
    more = f" and {counted(len(kept) - 1, 'other layer')}" if len(kept) > 1 else ""
    held = (
        "it cannot run" if problem.allowed[layer, type_] else "pins, forbidden pairs or what it supports keep from it"
    )
    return f"{problem.type_names[type_]!r}: {held} {problem.layer_names[layer]!r}{more}"


def _memory(problem: Problem, found: PlacementDetail) -> str:
    def filled(stage: int) -> float:
        return found.stages[stage].memory_bytes / float(problem.memory_bytes[found.stages[stage].type])

    worst = max(range(len(found.stages)), key=filled)
    type_ = found.stages[worst].type
    has, needs = float(problem.memory_bytes[type_]), found.stages[worst].memory_bytes
    return f"stage {worst} needs {format_bytes(needs)} of the {format_bytes(has)} on {problem.type_names[type_]!r}"


def _floor(problem: Problem, found: PlacementDetail) -> str:
    stuck = next(i for i, stage in enumerate(found.stages) if not stage.replicas)
    name = problem.type_names[found.stages[stuck].type]
    return f"stage {stuck} on {name!r} cannot reach {format_rate(problem.min_throughput)} with any number of replicas"


def _units(problem: Problem, found: PlacementDetail) -> str:
    told = []
    for type_, name in enumerate(problem.type_names):
        used, most = sum(s.replicas for s in found.stages if s.type == type_), int(problem.max_units[type_])
        if used > most:
            told.append(f"{used} of {name!r}, and the pool has {most}")
    return f"it takes at least {', '.join(told)}" if told else "the pool has too few units"


def _budget(problem: Problem, found: PlacementDetail) -> str:
    paid = (
        sum(stage.price_per_hour for stage in found.stages) + found.idle_price_per_hour
    )  # and of servers, where the units alone are within it
    paid = max(paid, found.price_per_hour) if math.isfinite(found.price_per_hour) else paid
    budget = format_money(problem.budget_per_hour)
    return f"it costs at least {format_money(paid)} {problem.currency}/h, and the budget is {budget}"


def _stage_count(problem: Problem, found: PlacementDetail) -> str:
    most = "" if problem.max_stages >= problem.layer_count else f", at most {problem.max_stages}"
    return f"it makes {counted(len(found.stages), 'stage')}, and at least {problem.min_stages}{most} are asked for"
