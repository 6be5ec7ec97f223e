"""What placements are worth with their best steps: units, micro-batches and schedule chosen for each.

Left out: the search for a placement (``passes/placement/steps``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.evaluate import Fault, PlacementDetail, detail, to_arrays
from heterps_compile.cost.problem import Floats, Placement, Problem
from heterps_compile.cost.server_cost import Pricing
from heterps_compile.passes.placement.steps.step_plans import SteppedPlan, feasible, plans_of, simulated, value_of
from heterps_compile.passes.placement.steps.step_search import with_best_units
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, rate
from heterps_compile.schedule.step_problem import StepProblem
from heterps_compile.units import format_rate

_TRIED = 2  # choices of units for a placement that are simulated


@dataclass(frozen=True, slots=True)
class StepPricing(Pricing):
    """How placements are priced where the step is what counts.

    Attributes:
        of: What steps are made of; None is none.
        counts: Numbers of micro-batches that are tried.
    """

    of: StepProblem | None = None
    counts: tuple[int, ...] = ()

    def detail(self, problem: Problem, placement: Placement) -> PlacementDetail:
        """Return a placement with the units of its best step."""
        found = detail(problem, placement)
        if found.faults:
            return found
        of = self._posed(problem)
        best = self._best(of, [placement])[0]
        if best is None:
            return _without_step(problem, found, self._tried(_without_floor(of), [placement])[0])
        best = with_best_units(of, best)
        priced = detail(problem, placement, np.array(best.step.units, np.float64))
        return replace(priced, value=best.value, throughput=problem.batch / best.step.step_s)

    def values(self, problem: Problem, placements: Sequence[Placement]) -> Floats:
        """Return the objective of placements; inf where infeasible."""
        best = self._best(self._posed(problem), placements)
        return np.array([float("inf") if each is None else each.value for each in best])

    def _posed(self, problem: Problem) -> StepProblem:
        if self.of is None:
            raise ValueError("steps are priced of a problem with steps")
        return replace(self.of, problem=problem)

    def _best(self, of: StepProblem, placements: Sequence[Placement]) -> list[SteppedPlan | None]:
        """Return the best plan of each placement; where none of a few reaches the floor, the quickest if that does."""
        best = self._tried(of, placements)
        if of.problem.min_throughput <= 0 or all(each is not None for each in best):
            return best
        missed = [i for i, each in enumerate(best) if each is None]
        for i, quickest in zip(missed, self._tried(_without_floor(of), [placements[i] for i in missed]), strict=True):
            if quickest is not None:
                value = value_of(of.problem, quickest.price_per_hour, quickest.step.step_s)
                best[i] = replace(quickest, value=value) if value < float("inf") else None
        return best

    def _tried(self, of: StepProblem, placements: Sequence[Placement]) -> list[SteppedPlan | None]:
        types, cuts = to_arrays(list(placements))
        kept = np.flatnonzero(feasible(of.problem, types, cuts))
        best: list[SteppedPlan | None] = [None] * len(placements)
        if not len(kept):
            return best
        place = {placements[i]: int(i) for i in kept.tolist()}
        for plan in plans_of(of, types[kept], cuts[kept], self.counts, _TRIED):
            i, found = place[plan.placement], simulated(of, plan)
            now = best[i]
            if found is not None and (now is None or found.rank < now.rank):
                best[i] = found
        return [best[place[each]] if each in place else None for each in placements]


def _without_floor(of: StepProblem) -> StepProblem:
    """Return the steps with nothing asked of them but to be quick."""
    return replace(of, problem=replace(of.problem, objective="throughput", min_throughput=0.0))


def _without_step(problem: Problem, found: PlacementDetail, quickest: SteppedPlan | None) -> PlacementDetail:
    """Return a placement that keeps all limits in the steady state, and of whose steps none does, with the reason."""
    if quickest is None:
        within = "" if problem.budget_per_hour == float("inf") else " within the budget"
        faults, reason = Fault.MEMORY, f"no step of it that was tried fits the memory of its units{within}"
    else:
        floor, reached = format_rate(problem.min_throughput), format_rate(rate(problem.batch, quickest.step.step_s))
        faults = Fault.FLOOR
        reason = f"its quickest step makes {reached}, and the floor is {floor} with {ONE_BATCH_ALONE}"
    return replace(found, value=float("inf"), throughput=0.0, faults=faults, step_fault=reason)
