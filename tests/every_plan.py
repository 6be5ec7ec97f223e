"""All plans of a small model on a set of machines, simulated one by one."""

from itertools import combinations, product

from heterps_compile.cost.problem import Placement
from heterps_compile.machines.machine_set import MachineSet
from heterps_compile.machines.step_times import StepTimes
from heterps_compile.passes.placement.steps.step_plans import simulated, with_units
from heterps_compile.passes.step_orders import steps_of


def shortest_of_every_plan(times: StepTimes, machines: MachineSet, batch: int) -> float:
    """Return the shortest step of all plans whose stages have one kind each; inf where there is none.

    All cuts, kinds, numbers of replicas that the set has, numbers of micro-batches that go with them, and schedules.
    """
    posed = times._pose(times._hardware(machines)[0], batch)
    if isinstance(posed, str):
        return float("inf")
    of, problem = steps_of(posed), posed.problem
    limits, shortest_s = problem.max_units.astype(int).tolist(), float("inf")
    cuttable = [place for place in range(1, problem.layer_count) if not problem.uncuttable[place]]
    for cuts in (cuts for count in range(len(cuttable) + 1) for cuts in combinations(cuttable, count)):
        starts = (0, *cuts)
        for kinds in product(range(problem.type_count), repeat=len(starts)):
            if any(kinds.count(kind) > limit for kind, limit in enumerate(limits)):
                continue
            ends = (*cuts, problem.layer_count)
            types = tuple(
                kind for kind, first, end in zip(kinds, starts, ends, strict=True) for _ in range(end - first)
            )
            if any(not problem.allowed[layer, kind] for layer, kind in enumerate(types)):
                continue
            same = tuple(cut for cut in cuts if types[cut - 1] == types[cut])
            placement = Placement(types, same)
            for units in product(*(range(1, limits[kind] + 1) for kind in kinds)):
                used = [
                    sum(u for u, own in zip(units, kinds, strict=True) if own == kind) for kind in range(len(limits))
                ]
                if any(each > limit for each, limit in zip(used, limits, strict=True)):
                    continue
                for plan in with_units(of, placement, units, of.counts(max(units))):
                    if plan.least_s < shortest_s and (found := simulated(of, plan, shortest_s)) is not None:
                        shortest_s = found.step.step_s
    return shortest_s
