"""Plans with everything that a step depends on: what they cost, and bounds that are cheap.

The value of a plan is its objective with the step in the place of the steady state's batch::

    cost         price per hour * step / samples         subject to  samples / step >= floor
    price        price per hour                                      samples / step >= floor
    throughput   step                                                price per hour <= budget

Tables lie on as many servers as keep up with the steady state; what a step waits for their rows follows from that.

Left out: which plans are looked at (``step_search.py``); more servers, with which a step may be shorter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np

from heterps_compile.cost.chosen_units import BUDGET_TOLERANCE
from heterps_compile.cost.evaluate import evaluate, slowest_batch_s, to_arrays
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Bools, ChosenStep, Floats, Ints, Placement, Problem
from heterps_compile.cost.served_rows import ServedRows
from heterps_compile.cost.table_servers import servers_at
from heterps_compile.cost.whole_machines import rented_units
from heterps_compile.passes.placement.proof.trivial_bounds import GAP
from heterps_compile.schedule.load import StageLoad
from heterps_compile.schedule.micro_batch import MicroBatch
from heterps_compile.schedule.shortest_step import INFERENCE_SCHEDULES, TRAINING_SCHEDULES, step_under
from heterps_compile.schedule.step_length import step_length_s
from heterps_compile.schedule.step_problem import MicroBatches, StepProblem, StepsOfPlacements
from heterps_compile.schedule.zero_bubble import ZERO_BUBBLE


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """A placement with units and micro-batches, and what is known of its step.

    Attributes:
        placement: Of layers.
        units: [S].
        price_per_hour: Of all units.
        micro_batches: In the step.
        loads: [S], what the step asks of the stages.
        least_s: A lower bound on the step.
        value: The objective, with that bound in the place of the step.
        schedules_s: [C], lower bounds under every schedule.
    """

    placement: Placement
    units: tuple[int, ...]
    price_per_hour: float
    micro_batches: int
    loads: tuple[StageLoad, ...]
    least_s: float
    value: float
    schedules_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SteppedPlan:
    """A plan whose step is simulated, of the lower value the better; of equal ones the shorter step."""

    placement: Placement
    step: ChosenStep
    price_per_hour: float
    value: float

    @property
    def rank(self) -> tuple[float, float]:
        """Return what plans are compared by."""
        return self.value, self.step.step_s

    def is_better_than(self, other: "SteppedPlan") -> bool:
        """Return whether its value is lower by more than rounding, or as low with a step that is shorter by more."""
        if self.value < other.value * (1 - GAP):
            return True
        return self.value <= other.value * (1 + GAP) and self.step.step_s < other.step.step_s * (1 - GAP)


def value_of(problem: Problem, price_per_hour: float, step_s: float) -> float:
    """Return the objective of a plan with that step; inf where a limit is broken."""
    return float(values_of(problem, np.array([price_per_hour]), np.array([step_s]))[0])


def values_of(problem: Problem, price_per_hour: Floats, step_s: Floats) -> Floats:
    """Return the objective of plans with those steps, or with bounds on them; inf where a limit is broken."""
    with np.errstate(divide="ignore"):  # a step that no unit has the memory for takes for ever
        paid = OBJECTIVES[problem.objective].paid(price_per_hour, problem.batch / np.maximum(step_s, 1e-30))
    is_over = (step_s > slowest_batch_s(problem)) | (price_per_hour > problem.budget_per_hour * (1 + BUDGET_TOLERANCE))
    return np.asarray(np.where(is_over, np.inf, step_s if paid is None else paid), np.float64)


def feasible(problem: Problem, types: Ints, cuts: Bools) -> Bools:
    """Return [B], which placements keep to all limits in the steady state, which every step does then too."""
    # for the objective price only the fewest units are looked for, which is quicker than the best ones
    return np.asarray(evaluate(replace(problem, objective="price"), types, cuts).faults == 0)


@dataclass(frozen=True, eq=False)
class BoundedPlans:
    """Placements with choices of units for one number of micro-batches, and bounds on their steps.

    Attributes:
        steps: The placements' stages.
        each: [B, V, S], units and what micro-batches take with them.
        delays_s, overlaps_s: [B, V, S].
        schedules_s: [C, B, V], bounds under every schedule.
        least_s: [B, V], the lower ones.
        price_per_hour: [B, V].
        values: [B, V], the objective with the bounds as steps; inf where a limit is broken.
        servers: [B, V], that tables lie on; None where none does.
    """

    steps: StepsOfPlacements
    each: MicroBatches
    delays_s: Floats
    overlaps_s: Floats
    schedules_s: Floats
    least_s: Floats
    price_per_hour: Floats
    values: Floats
    servers: Floats | None

    @classmethod
    def of(cls, steps: StepsOfPlacements, each: MicroBatches) -> "BoundedPlans":
        """Bound the steps of choices of units."""
        problem, has = steps.of.problem, steps.has[:, None, :]
        delays_s, overlaps_s = steps.delays(each)
        servers: Floats | None = None
        if problem.served_s is not None:  # as many servers as keep up with the steady state
            batch_s = np.where(has, each.batch_s, 0.0).max(axis=2)
            servers = np.vectorize(partial(servers_at, problem), otypes=[np.float64])(batch_s)
        schedules_s = steps.least_steps_s(each, delays_s, overlaps_s, servers)
        least_s = schedules_s.min(axis=0)
        units = np.where(has, each.units, 0.0)
        used = steps.used_units(units)
        price = np.asarray(rented_units(problem, used) @ problem.price_per_hour, np.float64)
        if servers is not None:
            price += problem.server_price_per_hour * servers
        values = values_of(problem, price, least_s)
        values[~steps.of.takes(each.count, units.max(axis=2))] = np.inf
        values[(used > problem.max_units).any(axis=2)] = np.inf
        return cls(steps, each, delays_s, overlaps_s, schedules_s, least_s, price, values, servers)

    def best(self, most: int) -> Iterator[tuple[float, float, int, int]]:
        """Yield value, bound, row and column of the best choices of every placement."""
        order = np.lexsort((self.least_s, self.values), axis=1)[:, :most]
        for row, columns in enumerate(order.tolist()):
            for column in columns:
                if np.isfinite(self.values[row, column]):
                    yield float(self.values[row, column]), float(self.least_s[row, column]), row, column

    def plan(self, row: int, column: int) -> StepPlan:
        """Return a choice of a placement."""
        each, cell = self.each, (row, column)
        times_s = each.forward_s, each.backward_s, each.moving_s, self.delays_s, self.overlaps_s
        loads = tuple(
            StageLoad(
                int(each.units[cell][s]),
                (MicroBatch(each.count, *(float(time_s[cell][s]) for time_s in times_s)),),
                sync_s=float(each.sync_s[cell][s]),
                rows=self._rows(cell, s),
                moved_s=float(each.moved_s[cell][s]),
            )
            for s in range(int(self.steps.has[row].sum()))
        )
        return StepPlan(
            self.steps.placement(row),
            tuple(load.replicas for load in loads),
            float(self.price_per_hour[cell]),
            each.count,
            loads,
            float(self.least_s[cell]),
            float(self.values[cell]),
            tuple(self.schedules_s[(slice(None), *cell)].tolist()),
        )

    def _rows(self, cell: tuple[int, int], stage: int) -> ServedRows | None:
        """Return what the tables of a stage on servers take; None where it has none."""
        each = self.each
        network_s, requests_s, one_server_s = (
            float(times_s[cell][stage]) for times_s in (each.rows_s, each.requests_s, each.one_server_s)
        )
        if self.servers is None or network_s + requests_s + one_server_s <= 0:
            return None
        servers_s = one_server_s / float(self.servers[cell])
        return ServedRows(network_s, servers_s, requests_s, is_pushed=self.steps.of.training)


def plans_of(of: StepProblem, types: Ints, cuts: Bools, counts: Sequence[int], most: int = 1) -> Iterator[StepPlan]:
    """Yield for every placement [B, L] its plans of the lowest bounds, at most so many, the most promising first."""
    steps = of.steps(types, cuts)
    bounded = {count: BoundedPlans.of(steps, steps.choices(count)) for count in counts}
    found = sorted((*choice, count) for count, plans in bounded.items() for choice in plans.best(most))
    taken = np.zeros(len(types), np.int64)
    for _, _, row, column, count in found:
        if taken[row] < most:
            taken[row] += 1
            yield bounded[count].plan(row, column)


def with_units(of: StepProblem, placement: Placement, units: Sequence[int], counts: Sequence[int]) -> list[StepPlan]:
    """Return a placement with given units for some numbers of micro-batches, whether or not these suit the units."""
    steps = of.steps(*to_arrays([placement]))
    given = np.array([units], np.float64).T
    return [
        BoundedPlans.of(steps, steps.in_rows(steps.micro_batches(count, given)).changed(_stages_last)).plan(0, 0)
        for count in counts
    ]


def _stages_last(values: Floats) -> Floats:
    return values.transpose(0, 2, 1)


def with_other_units(of: StepProblem, plan: SteppedPlan) -> list[StepPlan]:
    """Return the plan with the units of one or two stages a step up or down, the most promising first."""
    steps, own = of.steps(*to_arrays([plan.placement])), [float(k) for k in plan.step.units]
    ks = sorted({*steps.unit_choices(plan.step.micro_batches).tolist(), *own})
    most = of.problem.max_units[steps.flat.type]
    near = [[k for k in _near(ks, k_now) if k <= limit] for k_now, limit in zip(own, most, strict=True)]
    moves = [(s, k) for s, others in enumerate(near) for k in others]
    changes = [{s: k} for s, k in moves] + [dict(both) for both in combinations(moves, 2) if both[0][0] < both[1][0]]
    rows = [own, *([change.get(s, k) for s, k in enumerate(own)] for change in changes)]
    return _of_units(steps, rows, plan.step.micro_batches)


def of_units(of: StepProblem, placement: Placement, units: Sequence[Sequence[int]], count: int) -> list[StepPlan]:
    """Return a placement with several choices of units for one number of micro-batches, the most promising first."""
    return _of_units(of.steps(*to_arrays([placement])), units, count)


def _of_units(steps: StepsOfPlacements, units: Sequence[Sequence[float]], count: int) -> list[StepPlan]:
    each = steps.in_rows(steps.micro_batches(count, np.array(units, np.float64).T))
    bounded = BoundedPlans.of(steps, each.changed(_stages_last))
    return [bounded.plan(row, column) for _, _, row, column in bounded.best(len(units))]


def _near(ks: Sequence[float], own: float) -> list[float]:
    """Return the choices of units next to some number, and the numbers next to it."""
    place = list(ks).index(own)
    return sorted({k for k in (*ks[max(0, place - 1) : place + 2], own - 1, own + 1) if k >= 1 and k != own})


def simulated(of: StepProblem, plan: StepPlan, most: float = np.inf) -> SteppedPlan | None:
    """Return the plan with the best of its steps; None where it has no room, breaks a limit or is not below ``most``.

    A schedule whose bound is not below ``most`` is not simulated.
    A step without what memory makes its stages compute again is simulated first, as it is no longer.
    """
    best: SteppedPlan | None = None
    names = TRAINING_SCHEDULES if of.training else INFERENCE_SCHEDULES
    for name, least_s in zip(names, plan.schedules_s, strict=True):
        if least_s > plan.least_s and value_of(of.problem, plan.price_per_hour, least_s) >= most:
            continue
        step_s = step_length_s(name, plan.loads, plan.micro_batches, training=of.training)
        value = value_of(of.problem, plan.price_per_hour, step_s)
        if of.memory is not None and value < most:
            step_s = simulated_s(of, plan, name)
            value = value_of(of.problem, plan.price_per_hour, step_s)
        if np.isfinite(value) and value < most:
            step = ChosenStep(plan.units, plan.micro_batches, name, step_s)
            found = SteppedPlan(plan.placement, step, plan.price_per_hour, value)
            best = found if best is None or found.rank < best.rank else best
    return best


def simulated_s(of: StepProblem, plan: StepPlan, schedule: str) -> float:
    """Return the simulated step; inf where some unit has no room for it."""
    if of.memory is None and schedule != ZERO_BUBBLE:
        return step_length_s(schedule, plan.loads, plan.micro_batches, training=of.training)
    loads = plan.loads if of.memory is None else of.with_memory(plan.placement, plan.loads)
    step = step_under(schedule, loads, plan.micro_batches, training=of.training)
    return step.step_s if step.fits else float("inf")
