"""Brute force: every placement there is. The oracle of the other methods, for a handful of layers.

Left out: anything clever.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heterps_compile.cost.evaluate import evaluate, to_placement
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.errors import HeterpsError
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.passes.placement.enumeration import every_placement, placement_count
from heterps_compile.passes.placement.proof.why_infeasible import explain_infeasible
from heterps_compile.passes.placement.simple_plans import require_feasible, seed_placements

MOST_PLACEMENTS = 2_000_000


@dataclass(frozen=True, slots=True)
class Brute:
    """Evaluate every choice of types and cuts (``--method brute``)."""

    name: ClassVar[str] = "brute"

    def __call__(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        time_limit_s: float | None = None,
        warm_start: Placement | None = None,
    ) -> SearchResult:
        """Find the placement of the lowest objective; see :class:`~.method.PlacementMethod`.

        Raises:
            HeterpsError: where there are more than two million placements.
            InfeasibleError: where none is feasible, with the reason.
        """
        started, deadline = now_s(), Deadline.after(time_limit_s)
        count = placement_count(problem)
        if count > MOST_PLACEMENTS:
            raise HeterpsError(
                f"brute force would evaluate {count:.3g} placements, and its limit is {MOST_PLACEMENTS:,}; "
                "--method exact finds the same optimum"
            )
        best, best_value, evaluations = seed_placements(problem, warm_start)[0], np.inf, 0
        for types, cuts in every_placement(problem):
            values = evaluate(problem, types, cuts).values
            evaluations += len(values)
            row = int(np.argmin(values))
            if values[row] < best_value:
                best, best_value = to_placement(types[row], cuts[row]), float(values[row])
            if deadline.left_s() < 0:
                break
        if evaluations == count and np.isinf(best_value):
            raise explain_infeasible(problem, deadline)
        value = require_feasible(problem, best, self.name)
        return SearchResult(
            placement=best,
            value=value,
            bound=value if evaluations == count else -np.inf,
            method=self.name,
            seed=seed,
            evaluations=evaluations,
            search_s=now_s() - started,
            notes=() if evaluations == count else (f"stopped by the time limit after {evaluations:,} of {count:,.0f}",),
        )
