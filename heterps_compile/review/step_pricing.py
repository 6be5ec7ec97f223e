"""What placements are worth with their best steps: units, micro-batches and schedule chosen for each.

Left out: the search for a placement (``passes/placement/steps``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.evaluate import Fault, PlacementDetail, detail, to_arrays
from heterps_compile.cost.problem import Floats, Placement, Problem
from heterps_compile.cost.server_cost import Pricing
from heterps_compile.passes.placement.steps.step_plans import SteppedPlan, feasible, plans_of, simulated
from heterps_compile.passes.placement.steps.step_search import with_best_units
from heterps_compile.schedule.step_problem import StepProblem

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
            return replace(found, value=float("inf"), throughput=0.0, faults=Fault.FLOOR)
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
