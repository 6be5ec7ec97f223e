"""What placements cost: the single truth of every search method, of provisioning and of the report.

The formulas stand in :mod:`.problem`. For a placement the replicas are chosen exactly (:mod:`.best_units`), so a
placement's value is the lowest objective that any replicas give it.

Left out: the search for a placement (``passes/placement``).
"""

from dataclasses import dataclass, replace
from enum import IntFlag

import numpy as np

from .chosen_units import BUDGET_TOLERANCE, chosen_units, fewest_units
from .memory import MEMORY_TOLERANCE
from .objective import OBJECTIVES
from .problem import Bools, Floats, Ints, Placement, Problem
from .row_sums import RowSums
from .segments import FlatStages, flatten_stages
from .served_rows import ServedRows
from .table_servers import ServedRange, extended, extended_types, fixed_range, served_ranges, servers_at, work_s
from .whole_machines import idle_price_per_hour, paid_per_hour, units_by_type

FLOOR_TOLERANCE = 1e-9
"""Relative: a floor is met when rounding alone stands between it and the throughput."""

_SHORTEST_S = 1e-30  # stands for the time of a batch without any work
_CELLS_AT_ONCE = 1 << 18  # layers of placements that are evaluated together, so that memory stays small


class Fault(IntFlag):
    """Why a placement is infeasible; several may hold at once."""

    NONE = 0
    FLOOR = 1  # a stage cannot reach the throughput floor with any number of replicas
    UNITS = 2  # the replicas that the floor needs exceed a type's limit
    MEMORY = 4  # a stage does not fit on its type
    STAGE_COUNT = 8  # too few or too many stages
    FORBIDDEN = 16  # a layer is on a type it may not use
    UNCUTTABLE = 32  # a stage begins where none may
    BUDGET = 64  # the fewest replicas that the floor needs exceed the budget


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What B placements cost.

    Attributes:
        values: [B], the objective; inf where infeasible.
        throughput: [B], samples/s; 0 where infeasible.
        price_per_hour: [B]; inf where infeasible.
        faults: [B], bits of :class:`Fault`, 0 where feasible.
        violation: [B], 0 where feasible; else how far from feasible, as a sum of relative excesses (layers and stages
            count whole). It guides searches out of infeasible regions and has no other meaning.
    """

    values: Floats
    throughput: Floats
    price_per_hour: Floats
    faults: Ints
    violation: Floats


@dataclass(frozen=True, slots=True)
class StageDetail:
    """One stage with its best replicas.

    Attributes:
        first_layer, end_layer: Layers first_layer .. end_layer - 1.
        type: Index of its device type.
        replicas: Units; where the placement is infeasible, those the floor needs, or 0 where no number is enough.
        compute_s, data_s: CT and DT of a batch with those replicas, DT no less than what the storage behind them
            takes; inf with 0 replicas.
        received_bytes, sent_bytes: Of a batch.
        memory_bytes: Of one replica.
        price_per_hour: Of all replicas; units of its machines that no stage uses are in the placement's price alone.
        rows: Of its tables on servers; None where it has none.
    """

    first_layer: int
    end_layer: int
    type: int
    replicas: int
    compute_s: float
    data_s: float
    sync_s: float
    received_bytes: float
    sent_bytes: float
    memory_bytes: float
    price_per_hour: float
    rows: ServedRows | None = None

    @property
    def time_s(self) -> float:
        """Return ET."""
        return max(self.compute_s, self.data_s)


@dataclass(frozen=True, slots=True)
class PlacementDetail:
    """One placement, stage by stage; value, throughput, price and faults as :class:`Evaluation` has them.

    Attributes:
        idle_price_per_hour: Of units that are rented with whole machines, and that no stage uses.
        step_fault: Why no step of it keeps the limits, in words, where all are kept in the steady state; else "".
        servers: That hold tables; their price is in that of the placement.
        servers_s: What they take for a batch.
    """

    stages: tuple[StageDetail, ...]
    value: float
    throughput: float
    price_per_hour: float
    faults: Fault
    servers: int = 0
    servers_s: float = 0.0
    idle_price_per_hour: float = 0.0
    step_fault: str = ""


def evaluate(problem: Problem, types: Ints, cuts: Bools | None = None) -> Evaluation:
    """Evaluate placements with the best replicas for each.

    Args:
        problem: The problem.
        types: [B, L], index of the device type of every layer.
        cuts: [B, L], True at p where a stage begins at layer p although p - 1 has the same type; None for no cuts.
    """
    if problem.served_s is not None:
        return _evaluate_served(problem, types, cuts)
    rows = max(1, _CELLS_AT_ONCE // max(1, problem.layer_count))
    parts = [
        _price(problem, flatten_stages(problem, types[i : i + rows], None if cuts is None else cuts[i : i + rows]))[0]
        for i in range(0, len(types), rows)
    ]
    if len(parts) == 1:
        return parts[0]
    return Evaluation(*(np.concatenate([getattr(part, name) for part in parts]) for name in Evaluation.__slots__))


def evaluate_one(problem: Problem, placement: Placement) -> float:
    """Return the value of one placement: its objective, inf where infeasible."""
    return float(evaluate(problem, *to_arrays([placement])).values[0])


def to_arrays(placements: list[Placement]) -> tuple[Ints, Bools]:
    """Return the arrays [B, L] of types and of cuts that :func:`evaluate` takes."""
    types = np.array([placement.types for placement in placements], np.int64)
    cuts = np.zeros(types.shape, np.bool_)
    for row, placement in zip(cuts, placements, strict=True):
        row[list(placement.cuts)] = True
    return types, cuts


def to_placement(types: Ints, cuts: Bools | None = None) -> Placement:
    """Return the placement of one row [L]; cuts where the type changes anyway are left out."""
    kept = () if cuts is None else 1 + np.flatnonzero(cuts[1:] & (types[1:] == types[:-1]))
    return Placement(tuple(int(t) for t in types), tuple(int(p) for p in kept))


def ranges_of(problem: Problem) -> tuple[ServedRange, ...]:
    """Return the problems without servers that a problem with tables on servers is."""
    return served_ranges(problem, slowest_batch_s(problem))


def _evaluate_served(problem: Problem, types: Ints, cuts: Bools | None) -> Evaluation:
    """Evaluate placements with the better number of servers for each; faults are those of the first range."""
    types = extended_types(problem, types)
    cuts = None if cuts is None else np.pad(cuts, ((0, 0), (0, 1)))
    first, *others = (evaluate(each.problem, types, cuts) for each in ranges_of(problem))
    for other in others:
        better = other.values < first.values
        first = Evaluation(
            *(np.where(better, getattr(other, name), getattr(first, name)) for name in Evaluation.__slots__)
        )
    return first


def _detail_served(
    problem: Problem, placement: Placement, units: Floats | None, servers: int | None
) -> PlacementDetail:
    """Return the detail of a placement with its servers, which are no stage of it."""
    ranges = ranges_of(problem)
    if units is not None or servers is not None:
        if servers is None:
            stages = flatten_stages(replace(problem, served_s=None), *to_arrays([placement]))
            slowest_s = float(stages.work.time_s(np.asarray(units)).max())
            servers = servers_at(problem, min(slowest_s, slowest_batch_s(problem)))
        ranges = (fixed_range(problem, servers),)
        units = None if units is None else np.append(units, 1.0)
    whole = extended(problem, placement)
    found, count = min(
        ((one, each.count(one.stages[-1].replicas)) for each in ranges for one in [detail(each.problem, whole, units)]),
        key=lambda pair: pair[0].value,
    )
    if not count or problem.served_s is None:
        return replace(found, stages=found.stages[:-1])
    servers_s = work_s(problem) / count  # that every stage waits for which looks rows up
    stages_ = tuple(
        replace(stage, data_s=max(stage.data_s, servers_s))
        if np.any(problem.served_s[stage.first_layer : stage.end_layer] > 0)
        else stage
        for stage in found.stages[:-1]
    )
    return replace(found, stages=_with_rows(problem, placement, stages_, count), servers=count, servers_s=servers_s)


def _with_rows(
    problem: Problem, placement: Placement, stages: tuple[StageDetail, ...], servers: int
) -> tuple[StageDetail, ...]:
    """Return stages with the rows of their tables on so many servers, as steps have them."""
    flat = flatten_stages(replace(problem, served_s=None), *to_arrays([placement]))
    layers = np.arange(problem.layer_count)

    def sums(of_layers: Floats) -> Floats:
        return np.asarray(np.add.reduceat(of_layers[layers, list(placement.types)], flat.first), np.float64)

    rows, units = RowSums.of(problem, sums), np.array([stage.replicas for stage in stages], np.float64)
    if rows is None or not np.all(units > 0):
        return stages
    data_s, shared_s = rows.without(flat.work.data_time_s(units), units), flat.work.shared_s
    if shared_s is not None:
        data_s = np.maximum(data_s, rows.shared_without(shared_s))
    network_s = rows.network_s(units)
    return tuple(
        replace(
            stage,
            rows=ServedRows(
                float(network_s[s]),
                float(rows.one_server_s[s]) / servers,
                float(rows.requests_s[s]),
                max(0.0, stage.data_s - max(float(data_s[s]), stage.sync_s)),
                is_pushed=rows.directions > 1,
            ),
        )
        if network_s[s] + rows.requests_s[s] + rows.one_server_s[s] > 0
        else stage
        for s, stage in enumerate(stages)
    )


def detail(
    problem: Problem, placement: Placement, units: Floats | None = None, *, servers: int | None = None
) -> PlacementDetail:
    """Return a placement's stages with their best replicas; its numbers are those of :func:`evaluate`.

    Args:
        problem: The problem.
        placement: The placement.
        units: [S], the replicas of its stages, where they are not to be the best ones.
        servers: That hold its tables, where it is not to be the best number; of a problem with served tables alone.
    """
    if problem.served_s is not None:
        return _detail_served(problem, placement, units, servers)
    types, cuts = to_arrays([placement])
    stages = flatten_stages(problem, types, cuts, memory=True)
    evaluation, best = _price(problem, stages)
    if units is None:
        units = best
    else:
        work, lacks = stages.work.admitting(units)
        stages = replace(stages, work=work)
        evaluation = _priced_with(problem, stages, units, evaluation)
        faults = np.where(lacks.any(), int(Fault.MEMORY), 0)  # of what replicas hold to agree
        evaluation = replace(evaluation, faults=evaluation.faults | faults)
    price = problem.price_per_hour[stages.type] * units
    with np.errstate(divide="ignore", invalid="ignore"):
        compute_s, data_s = stages.work.compute_time_s(units), stages.work.data_time_s(units)
        sync_s = stages.work.sync_time_s(units)
        data_s = data_s if stages.work.shared_s is None else np.maximum(data_s, stages.work.shared_s)
    reachable = units > 0
    compute_s, data_s = np.where(reachable, compute_s, np.inf), np.where(reachable, data_s, np.inf)
    return PlacementDetail(
        stages=tuple(
            StageDetail(
                first_layer=int(stages.first[s]),
                end_layer=int(stages.end[s]),
                type=int(stages.type[s]),
                replicas=int(units[s]),
                compute_s=float(compute_s[s]),
                data_s=float(data_s[s]),
                sync_s=float(sync_s[s]) if units[s] else 0.0,
                received_bytes=float(stages.received_bytes[s]),
                sent_bytes=float(stages.sent_bytes[s]),
                memory_bytes=float(stages.memory_bytes[s]),
                price_per_hour=float(price[s]),
            )
            for s in range(len(units))
        ),
        value=float(evaluation.values[0]),
        throughput=float(evaluation.throughput[0]),
        price_per_hour=float(evaluation.price_per_hour[0]),
        faults=Fault(int(evaluation.faults[0])),
        idle_price_per_hour=idle_price_per_hour(problem, stages.type, units),
    )


def _priced_with(problem: Problem, stages: FlatStages, units: Floats, best: Evaluation) -> Evaluation:
    """Return the evaluation of one placement with given replicas; its faults are those of the best ones."""
    batch_s = np.maximum(np.maximum.reduceat(stages.work.time_s(units), stages.offsets), _SHORTEST_S)
    paid = paid_per_hour(problem, stages.type, stages.placement, stages.offsets, units)
    return replace(
        best,
        values=_values(problem, stages, batch_s, paid),
        throughput=problem.batch / batch_s,
        price_per_hour=paid,
    )


def slowest_batch_s(problem: Problem) -> float:
    """Return the longest time of a batch that the throughput floor allows; inf without a floor."""
    if problem.min_throughput <= 0:
        return float("inf")
    return problem.batch / problem.min_throughput * (1 + FLOOR_TOLERANCE)


def _price(problem: Problem, stages: FlatStages) -> tuple[Evaluation, Floats]:
    """Return the evaluation of B placements, and the units of their N stages (0 where no number is enough)."""
    offsets = stages.offsets
    once_s = np.maximum.reduceat(stages.work.demand().once_s, offsets)
    slowest_s = np.minimum(once_s, slowest_batch_s(problem))
    units = fewest_units(problem, stages, slowest_s)
    faults, violation = _faults(problem, stages, units)
    values, throughput = np.full(len(offsets), np.inf), np.zeros(len(offsets))
    price_per_hour = np.full(len(offsets), np.inf)
    feasible = faults == 0
    if np.any(feasible):
        kept = stages if np.all(feasible) else stages.of(feasible)
        chosen = chosen_units(problem, kept, slowest_s[feasible])
        units[feasible[stages.placement]] = chosen
        batch_s = np.maximum(np.maximum.reduceat(kept.work.time_s(chosen), kept.offsets), _SHORTEST_S)
        paid = paid_per_hour(problem, kept.type, kept.placement, kept.offsets, chosen)
        throughput[feasible] = problem.batch / batch_s
        price_per_hour[feasible] = paid
        values[feasible] = _values(problem, kept, batch_s, paid)
    return Evaluation(values, throughput, price_per_hour, faults, violation), np.where(np.isinf(units), 0.0, units)


def _values(problem: Problem, stages: FlatStages, batch_s: Floats, price_per_hour: Floats) -> Floats:
    """Return the objective [B] of feasible placements: see :mod:`.objective`."""
    paid = OBJECTIVES[problem.objective].paid(price_per_hour, problem.batch / batch_s)
    if paid is not None:
        return paid
    if problem.objective == "latency":
        passed_s = np.add.reduceat(stages.work.compute_s + stages.work.data_s, stages.offsets)
        return np.maximum(np.asarray(passed_s, np.float64), _SHORTEST_S)
    return batch_s


def _faults(problem: Problem, stages: FlatStages, units: Floats) -> tuple[Ints, Floats]:
    """Return the bits of :class:`Fault` and the violation of every placement; ``units`` are the fewest at the floor."""
    owners = len(stages.offsets)
    stuck = np.isinf(units)
    used = units_by_type(problem.type_count, stages.type, stages.placement, np.where(stuck, 1.0, units), owners)
    count = np.diff(stages.offsets, append=len(stages.type))
    uncuttable = problem.uncuttable[stages.first] & (stages.first > 0)
    limits = np.maximum(problem.max_units, 1e-9)  # a type without units has limit 0
    paid = paid_per_hour(problem, stages.type, stages.placement, stages.offsets, np.where(stuck, 1.0, units))
    excess_budget = paid / problem.budget_per_hour - 1
    excess_memory = stages.memory_bytes / problem.memory_bytes[stages.type] - 1
    excesses = {
        Fault.FLOOR: np.add.reduceat(stuck.astype(np.float64), stages.offsets),
        Fault.UNITS: np.sum(np.maximum(used / limits - 1, 0.0), axis=1),
        Fault.MEMORY: np.add.reduceat(np.where(excess_memory > MEMORY_TOLERANCE, excess_memory, 0.0), stages.offsets),
        Fault.STAGE_COUNT: np.maximum(problem.min_stages - count, 0) + np.maximum(count - problem.max_stages, 0),
        Fault.FORBIDDEN: np.add.reduceat(stages.forbidden, stages.offsets),
        Fault.BUDGET: np.where(excess_budget > BUDGET_TOLERANCE, excess_budget, 0.0),
        Fault.UNCUTTABLE: np.add.reduceat(uncuttable.astype(np.float64), stages.offsets),
    }
    faults = np.zeros(owners, np.int64)
    for fault, excess in excesses.items():
        faults |= np.where(excess > 0, int(fault), 0)
    return faults, np.asarray(sum(excesses.values()), np.float64)
