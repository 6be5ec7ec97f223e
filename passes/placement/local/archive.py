"""The best plans a search has seen, each once, and the count of what it has evaluated.

Left out: where plans come from.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.evaluate import Evaluation, evaluate, to_arrays, to_placement
from heterps_compile.cost.problem import Bools, Ints, Placement, Problem
from heterps_compile.progress import tell

_MOST = 64  # plans kept
_NICHE = 0.15  # width of a range of throughputs, in its logarithm
_FROM_A_BATCH = 6  # plans of one batch looked at


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A plan that was evaluated.

    Attributes:
        types: [L].
        begins: [L], True where a stage begins, 0 included.
        value: Its objective; inf where infeasible.
        violation: How far from feasible.
        throughput: Samples/s with its best replicas; 0 where infeasible.
    """

    types: Ints
    begins: Bools
    value: float
    violation: float
    throughput: float

    @property
    def rank(self) -> tuple[float, float]:
        """Return what plans are sorted by, the best first."""
        return self.value, self.violation

    def placement(self) -> Placement:
        """Return the plan as a placement."""
        return to_placement(self.types, self.begins)


class Archive:
    """Plans of one problem, the best first; ``evaluations`` counts all that passed through."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.evaluations = 0
        self._plans: dict[bytes, Found] = {}
        self._best: Found | None = None

    @property
    def best(self) -> Found:
        """Return the best plan, or where none is feasible the one nearest to it.

        Raises:
            ValueError: before the first plan; every search adds its simple plans first.
        """
        if self._best is None:
            raise ValueError("the archive holds no plan yet")
        return self._best

    def add_placements(self, placements: Sequence[Placement]) -> None:
        """Evaluate placements and keep the good ones."""
        types, begins = to_arrays(list(placements))
        begins[:, 0] = True
        begins[:, 1:] |= types[:, 1:] != types[:, :-1]
        self.add(types, begins)

    def add(self, types: Ints, begins: Bools, evaluation: Evaluation | None = None) -> list[Found]:
        """Keep the good ones of plans [B, L]; evaluates them where that is not done. Gives them, the best first."""
        evaluation = evaluate(self.problem, types, begins) if evaluation is None else evaluation
        self.evaluations += len(types)
        found = []
        for row in np.lexsort((evaluation.violation, evaluation.values))[:_FROM_A_BATCH]:
            plan = Found(
                types[row],
                begins[row],
                float(evaluation.values[row]),
                float(evaluation.violation[row]),
                float(evaluation.throughput[row]),
            )
            found.append(plan)
            self._plans[_key(plan)] = plan
            if self._best is None or plan.rank < self._best.rank:
                self._best = plan
                if math.isfinite(plan.value):
                    tell(best=plan.value)
        if len(self._plans) > 2 * _MOST:
            self._plans = {_key(plan): plan for plan in [*self._sorted()[: _MOST // 2], *self.niches(_MOST)]}
        return found

    def niches(self, count: int) -> list[Found]:
        """Return the best plan of every range of throughput, the best first: good plans that differ."""
        best: dict[int, Found] = {}
        for plan in self._sorted():
            best.setdefault(round(math.log(plan.throughput) / _NICHE) if plan.throughput > 0 else 0, plan)
        return list(best.values())[:count]

    def _sorted(self) -> list[Found]:
        return sorted(self._plans.values(), key=lambda plan: plan.rank)


def _key(plan: Found) -> bytes:
    return plan.types.tobytes() + plan.begins.tobytes()
