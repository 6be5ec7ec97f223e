"""Brute force: every placement there is. The oracle of the other methods, for a handful of layers.

Left out: anything clever.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heterps_compile.cost.evaluate import evaluate, to_placement
from heterps_compile.cost.problem import Bools, Ints, Placement, Problem, SearchResult
from heterps_compile.errors import HeterpsError
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.passes.placement.proof.why_infeasible import explain_infeasible
from heterps_compile.passes.placement.simple_plans import require_feasible, seed_placements

MOST_PLACEMENTS = 2_000_000
_AT_ONCE = 20_000


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


def placement_count(problem: Problem) -> float:
    """Return how many choices of types and cuts there are."""
    return float(np.prod([float(options) for options in _options(problem)]))


def _options(problem: Problem) -> list[int]:
    """Return how many choices every layer has: stay in the stage, or begin one on any type; the first begins one."""
    begins = np.where(problem.uncuttable[: problem.layer_count], 0, problem.type_count)
    return [problem.type_count, *(1 + begins[1:]).tolist()]


def every_placement(problem: Problem) -> Iterator[tuple[Ints, Bools]]:
    """Yield types [B, L] and cuts [B, L] of all placements, some at a time."""
    options, count = _options(problem), int(placement_count(problem))
    for start in range(0, count, _AT_ONCE):
        choice = np.stack(np.unravel_index(np.arange(start, min(start + _AT_ONCE, count)), options), axis=1)
        choice[:, 0] += 1  # 0 is to stay, t + 1 to begin a stage on type t
        begins = choice > 0
        origin = np.maximum.accumulate(np.where(begins, np.arange(len(options)), 0), axis=1)
        yield np.take_along_axis(choice, origin, axis=1) - 1, begins
