"""Greedy: one layer after the other, each to the type that makes the whole plan cheapest at that moment.

The plan begins as the best simple one (all layers on one type, or the warm start); a layer may also begin a stage of
its own type. One sweep, O(layers * types) evaluations.

Left out: going back on a choice.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heterps_compile.cost.evaluate import evaluate, to_arrays, to_placement
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.passes.placement.simple_plans import divide, require_feasible, seed_placements


@dataclass(frozen=True, slots=True)
class Greedy:
    """Choose layer by layer (``--method greedy``)."""

    name: ClassVar[str] = "greedy"

    def __call__(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        time_limit_s: float | None = None,
        warm_start: Placement | None = None,
    ) -> SearchResult:
        """Sweep once over the layers; see :class:`~.method.PlacementMethod`.

        Raises:
            InfeasibleError: where the sweep ends in no feasible placement.
        """
        started, deadline = now_s(), Deadline.after(time_limit_s)
        starts = [divide(problem, placement) for placement in seed_placements(problem, warm_start)]
        types, cuts = to_arrays(starts)
        found = evaluate(problem, types, cuts)
        best = int(np.lexsort((found.violation, found.values))[0])
        now, now_cuts = types[best], cuts[best]
        score = (float(found.values[best]), float(found.violation[best]))
        evaluations = len(starts)
        blocks = np.append(0, np.flatnonzero(~problem.uncuttable[1 : problem.layer_count]) + 1)
        for first, end in zip(blocks, np.append(blocks[1:], problem.layer_count), strict=True):
            if deadline.left_s() < 0:
                break
            types = np.repeat(now[None], 2 * problem.type_count, axis=0)
            cuts = np.repeat(now_cuts[None], 2 * problem.type_count, axis=0)
            types[:, first:end] = np.tile(np.arange(problem.type_count), 2)[:, None]
            cuts[: problem.type_count, first] ^= first > 0
            found = evaluate(problem, types, cuts)
            evaluations += len(types)
            row = int(np.lexsort((found.violation, found.values))[0])
            if (float(found.values[row]), float(found.violation[row])) < score:
                score = (float(found.values[row]), float(found.violation[row]))
                now, now_cuts = types[row], cuts[row]
        placement = to_placement(now, now_cuts)
        return SearchResult(
            placement=placement,
            value=require_feasible(problem, placement, self.name),
            bound=-np.inf,
            method=self.name,
            seed=seed,
            evaluations=evaluations,
            search_s=now_s() - started,
        )
