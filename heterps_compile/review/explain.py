"""Why a layer stands where it does: its cost on every device type, the moves that are open to it, what binds.

Every number is that of the search: times by the cost model, and the objective of a whole plan after a move, with the
best replicas for it. A plan is posed again from its model, so the numbers are today's; a plan that was made from
something else is refused unless that is allowed.

Left out: the moves themselves (``moves.py``), what would make one win (``what_decides.py``), what pins cost
(``pin_cost.py``), the looks of it (``explain_words.py``).
"""

import math
from dataclasses import dataclass

from heterps_compile.cost.evaluate import PlacementDetail
from heterps_compile.cost.interchangeable import interchangeable_layers
from heterps_compile.cost.layer_cost import LayerCost
from heterps_compile.cost.layer_times import ESTIMATED
from heterps_compile.cost.objective import OBJECTIVES, Objective
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.cost.server_cost import Pricing
from heterps_compile.errors import UnknownNameError
from heterps_compile.ir.layer_titles import titles_of
from heterps_compile.plan.plan import reading_of_value
from heterps_compile.plan.stage_sync import sync_words
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE
from heterps_compile.units import counted, format_bytes, format_money, format_percent, format_rate, format_seconds

from .alike import Alike, alike_layers
from .judge import detail_today, judge, pricing_of
from .moves import Move, bound_by, fault_of, moves_of
from .pose import PosedAgain
from .what_decides import Decisive, what_decides

_NEAR = 0.02  # relative; what is this near to its limit binds
_SAME = 1e-9
_FAMILIES = (("layer",), ("boundary", "merge"), ("alike", "kind", "stage"))


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """What one device type would mean for the layer.

    Attributes:
        device: Its name.
        is_chosen: Whether the plan has the layer there.
        compute_s: Computation of a batch on one unit; inf where it cannot run the layer.
        data_s: Data movement of a batch on one unit that no cut changes.
        price: What a million samples of this layer alone cost on one unit; inf where it cannot run it.
        value: Objective of the plan with this layer there and all others where they are; inf where that is no plan.
        throughput: Samples/s of that plan; 0 where it is none.
        stages: Stages of that plan.
        fault: Why it is no plan; "" where it is one.
    """

    device: str
    is_chosen: bool
    compute_s: float
    data_s: float
    price: float
    value: float
    throughput: float
    stages: int
    fault: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a layer stands where it does.

    Attributes:
        layer: Its name in the model.
        kind: Of its anchor.
        title: What it is, where its name is made up; "" where the name tells.
        stage: Index of its stage.
        device: Name of the stage's device type.
        cost: Its work.
        objective: Name of the plan's objective.
        currency: Of prices.
        batch: Samples of a batch.
        value: Objective of the plan, as it is priced today.
        choices: What every device type of the pool would mean.
        binding: What holds the layer, or its stage, where they are.
        reason: The choice in one sentence.
        times: Where its times come from, forward and backward apart; "" where all are estimated.
        moves: What could be moved, the best first; see ``moves.py``.
        decisive: For the best of some kinds of moves, what would have to change for it to be worth as much as the plan.
        alike: Of the layers that are interchangeable with it; None where there are none.
        reading: That values are of; "" for an objective that is a time of its own.
        agreement: By which rule the replicas of its stage agree, and what an all-reduce would take; "" where it is one.
    """

    layer: str
    kind: str
    title: str
    stage: int
    device: str
    cost: LayerCost
    objective: str
    currency: str
    batch: int
    value: float
    choices: tuple[DeviceChoice, ...]
    binding: tuple[str, ...]
    reason: str
    times: str = ""
    moves: tuple[Move, ...] = ()
    decisive: tuple[tuple[Move, tuple[Decisive, ...]], ...] = ()
    alike: Alike | None = None
    reading: str = ""
    agreement: str = ""


def explain_layer(posed: PosedAgain, layer: str, *, allow_stale: bool = False) -> Explanation:
    """Explain one layer of a plan.

    Args:
        posed: The plan and the problem of today.
        layer: Name of the layer, in the plan or in the model.
        allow_stale: Explain with today's numbers a plan that was made from another model, pool or options.

    Raises:
        UnknownNameError: where there is no such layer.
        StalePlanError: where the plan does not fit the model, or was made from something else.
    """
    placement = posed.fitting(allow_stale=allow_stale)
    names = posed.problem.layer_names
    name = layer if layer in names else posed.matched.get(layer, layer)
    if name not in names:
        raise UnknownNameError("layer", layer, names)
    return _explain(posed, placement, names.index(name))


def _explain(posed: PosedAgain, placement: Placement, index: int) -> Explanation:
    problem, draft = posed.problem, posed.draft
    now, pricing = detail_today(posed, placement), pricing_of(posed)
    stage = max(s for s, first in enumerate(placement.starts()) if first <= index)
    mine = placement.types[index]
    choices = tuple(
        _choice(posed, index, type_, now if type_ == mine else _alone_on(problem, placement, index, type_, pricing))
        for type_ in range(problem.type_count)
    )
    alike = interchangeable_layers(problem)
    moves = moves_of(problem, placement, index, alike, pricing)
    return Explanation(
        layer=problem.layer_names[index],
        kind=problem.layer_kinds[index],
        title=titles_of(draft.layers_as_read).get(problem.layer_names[index], ""),
        stage=stage,
        device=problem.type_names[placement.types[index]],
        cost=draft.costs[index],
        objective=problem.objective,
        currency=draft.cluster.currency,
        batch=problem.batch,
        value=now.value,
        choices=choices,
        binding=tuple(_binding(posed, now, index, stage)),
        reason=_broken(posed, now)
        or _reason(OBJECTIVES[problem.objective], choices, moves, now.value, _way_out(pricing)),
        times=_times(posed, index),
        moves=moves,
        decisive=_decisive(problem, placement, moves, now.value, pricing),
        alike=alike_layers(problem, placement, index, alike, pricing),
        reading=reading_of_value(posed.plan),
        agreement=_agreement(posed, stage),
    )


def _broken(posed: PosedAgain, now: PlacementDetail) -> str:
    """Say that a plan is none today, so that nothing is better or worse than it; "" where it has a value."""
    if math.isfinite(now.value):
        return ""
    fault = judge(posed)[0]
    return f"the plan does not hold any more{': ' if fault else ''}{fault}; compile again"


def _decisive(
    problem: Problem, placement: Placement, moves: tuple[Move, ...], value: float, pricing: Pricing
) -> tuple[tuple[Move, tuple[Decisive, ...]], ...]:
    """Return what decides about the best move of each of the families: the layer, the cuts, the groups."""
    worse = [move for move in moves if move.outcome.value > value * (1 + _SAME)]
    best = [next((move for move in worse if move.kind in kinds), None) for kinds in _FAMILIES]
    asked = [move for move in best if move is not None]
    found = what_decides(problem, placement, [[move.outcome.placement] for move in asked], pricing)
    return tuple(zip(asked, found, strict=True))


def _times(posed: PosedAgain, index: int) -> str:
    """Say where the times of a layer come from, where a profile speaks for any."""
    times = posed.draft.times
    told = []
    for t, (source, name) in enumerate(zip(times.sources[index], posed.problem.type_names, strict=True)):
        of_batch = times.phases(index, t)
        backward = f" forward, {format_seconds(of_batch.backward_s)} backward" if times.training else ""
        told.append(f"{name!r} {source}, {format_seconds(of_batch.forward_s)}{backward}{_own_alpha(posed, index, t)}")
    return "; ".join(told) if set(times.sources[index]) != {ESTIMATED} else ""


def _own_alpha(posed: PosedAgain, index: int, type_: int) -> str:
    """Say what replicas divide of a layer, where that is not what they divide of its type."""
    problem = posed.problem
    if problem.layer_compute_parallel is None:
        return ""
    own, of_type = problem.layer_compute_parallel[index, type_], problem.compute_parallel[type_]
    return "" if own == of_type else f", of which replicas divide {own:.2f} (alpha; {of_type:.2f} of the type)"


def _alone_on(problem: Problem, placement: Placement, index: int, type_: int, pricing: Pricing) -> PlacementDetail:
    """Return the plan with one layer on another type."""
    types = (*placement.types[:index], type_, *placement.types[index + 1 :])
    # A cut between two layers that now differ in type is there anyway.
    moved = Placement(types, tuple(p for p in placement.cuts if types[p] == types[p - 1]))
    return pricing.detail(problem, moved)


def _choice(posed: PosedAgain, index: int, type_: int, found: PlacementDetail) -> DeviceChoice:
    problem = posed.problem
    compute_s, data_s = float(problem.compute_s[index, type_]), float(problem.data_s[index, type_])
    price = max(compute_s, data_s) * float(problem.price_per_hour[type_]) / 3600 / problem.batch * 1e6
    return DeviceChoice(
        device=problem.type_names[type_],
        is_chosen=posed.placement is not None and type_ == posed.placement.types[index],
        compute_s=compute_s,
        data_s=data_s,
        price=price,
        value=found.value,
        throughput=found.throughput,
        stages=len(found.stages),
        fault=_fault(problem, found, index, type_),
    )


def _fault(problem: Problem, found: PlacementDetail, index: int, type_: int) -> str:
    """Return why a placement is no plan; "" where it is one."""
    if not problem.allowed[index, type_]:
        return "a pin, a forbidden pair, or what the type supports, keeps the layer from it"
    if math.isinf(problem.compute_s[index, type_]):
        return "it cannot run the layer"
    return fault_of(problem, found)


def _binding(posed: PosedAgain, now: PlacementDetail, index: int, stage: int) -> list[str]:
    """Return what holds a layer and its stage where they are, each as a sentence."""
    problem, mine = posed.problem, now.stages[stage]
    name = problem.type_names[mine.type]
    found = []
    others = [problem.type_names[t] for t in range(problem.type_count) if problem.allowed[index, t] and t != mine.type]
    if not others:
        found.append(f"the layer may stand on {name!r} alone (pins, forbidden pairs, what types support)")
    slowest_s = max(part.time_s for part in now.stages)
    if mine.time_s >= slowest_s * (1 - _SAME):
        what = bound_by(now, stage)
        found.append(
            f"stage {stage} is the slowest, {format_seconds(mine.time_s)} a batch for {what}: it sets the throughput"
        )
    if problem.min_throughput > 0 and now.throughput <= problem.min_throughput * (1 + _NEAR):
        rates = f"{format_rate(now.throughput)} for {format_rate(problem.min_throughput)}"
        reading = f"with {ONE_BATCH_ALONE}" if posed.plan.request.minimises_step else f"in the {STEADY_STATE}"
        found.append(f"the throughput floor binds {reading}: {rates}")
    if now.price_per_hour >= problem.budget_per_hour * (1 - _NEAR):
        found.append(f"the budget binds: {format_money(problem.budget_per_hour)} {posed.draft.cluster.currency}/h")
    used, most = sum(part.replicas for part in now.stages if part.type == mine.type), int(problem.max_units[mine.type])
    if used == most:
        found.append(f"the pool has {counted(most, 'unit')} of {name!r}, and all are in use")
    if mine.memory_bytes >= float(problem.memory_bytes[mine.type]) * (1 - _NEAR):
        has = format_bytes(float(problem.memory_bytes[mine.type]))
        found.append(f"memory binds: stage {stage} needs {format_bytes(mine.memory_bytes)} of {has} on {name!r}")
    if len(now.stages) == problem.max_stages:
        found.append(f"the number of stages binds: at most {problem.max_stages} are allowed")
    if len(now.stages) == problem.min_stages > 1:
        found.append(f"the number of stages binds: at least {problem.min_stages} are asked for")
    return found


def _agreement(posed: PosedAgain, stage: int) -> str:
    """Say by which rule the stage of a layer agrees, and why by that one."""
    plan = posed.plan
    if plan.stages[stage].sync is None:
        return ""
    why = (
        f"no rule that --allow {plan.request.allow} allows makes a shorter step"
        if plan.request.chooses_rules
        else f"asked for, with --sync {plan.request.synchronisation}"
    )
    counted = "an all-reduce in every stage" if posed.problem.rules is None else "what every stage may agree by"
    return f"stage {stage} by {sync_words(plan.stages[stage])}; {why}; what follows counts {counted}"


def _way_out(pricing: Pricing) -> str:
    """Return what to do about a move that is better than the plan."""
    return "compile again" if pricing.servers is None else "the search leaves out the servers' price, so pin it (--pin)"


def _reason(
    objective: Objective, choices: tuple[DeviceChoice, ...], moves: tuple[Move, ...], value: float, way_out: str
) -> str:
    """Say what moving the layer alone would do, and what the best of the other moves would."""
    alone = _alone(objective, choices, value, way_out)
    others = [move for move in moves if move.kind != "layer" and not move.outcome.fault]
    if not others:
        return alone
    best = others[0]
    change = -objective.better_by(value, best.outcome.value) if value > 0 else 0.0
    if change > _SAME:
        return f"{alone}; of the other moves the best, {best.what}, would make it {format_percent(100 * change)} worse"
    if change < -_SAME:
        better = format_percent(-100 * change)
        return f"{alone}; but {best.what} would make the plan {better} better: {way_out}"
    return f"{alone}; of the other moves the best, {best.what}, would make no difference"


def _alone(objective: Objective, choices: tuple[DeviceChoice, ...], value: float, way_out: str) -> str:
    (chosen,) = (choice for choice in choices if choice.is_chosen)
    others = [choice for choice in choices if not choice.is_chosen]
    possible = [choice for choice in others if not choice.fault]
    if not possible:
        return f"{chosen.device!r} is the only type it can stand on while all other layers stay where they are"
    best = min(possible, key=lambda choice: choice.value)
    change = -objective.better_by(value, best.value) if value > 0 else 0.0
    if change > _SAME:
        return f"alone on {best.device!r}, the next best, it would make the plan {format_percent(100 * change)} worse"
    if change < -_SAME:
        return f"alone on {best.device!r} it would make the plan {format_percent(-100 * change)} better; {way_out}"
    return f"alone on {best.device!r} it would make no difference"
