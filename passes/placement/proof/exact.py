"""The exact method: the best placement there is, with the proof; stopped early, the best so far and an honest bound.

Complexity: a pass is O(segments * types), quadratic in the layers where one stage may hold them all; some tens of
passes are usual, over the few segments that can still matter. In long chains blocks of positions tell which those are.

Left out: the search itself (``prove.py`` and what it calls), and why nothing is feasible (``why_infeasible.py``).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.errors import InfeasibleError, UnprovenError
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.passes.placement.incumbent import Incumbent
from heterps_compile.passes.placement.simple_plans import seed_placements

from .effort import EFFORT, Effort
from .prove import Proof, prove
from .why_infeasible import explain_infeasible

TIME_UP = "the time limit came before the proof was complete"
NOT_BEGUN = "too little time was left to begin the mixed-integer programme that the proof needs"
OPEN = "limits or links that couple the stages leave a gap that the proof does not close"


@dataclass(frozen=True, slots=True)
class Exact:
    """Branch and bound over the throughput, dynamic programming over segments (``--method exact``).

    Attributes:
        effort: What the search may do; no answer depends on it.
    """

    effort: Effort = EFFORT

    name: ClassVar[str] = "exact"
    proves: ClassVar[bool] = True

    def __call__(
        self, problem: Problem, *, seed: int = 0, time_limit_s: float | None = None, warm_start: Placement | None = None
    ) -> SearchResult:
        """Find the placement of the lowest objective; see :class:`~.method.PlacementMethod`.

        Raises:
            InfeasibleError: where no placement is feasible, with the reason, or where none was found in time.
        """
        started = now_s()
        if problem.min_stages > problem.layer_count:  # tables as large as that would be no help
            raise explain_infeasible(problem)
        deadline, incumbent = Deadline.after(time_limit_s), Incumbent(problem, tells=True)
        starts = seed_placements(problem, warm_start)
        proof = prove(problem, deadline, starts, self.effort, incumbent=incumbent)
        if proof.placement is None:
            raise no_plan(problem, proof, deadline, time_limit_s)
        value = evaluate_one(problem, proof.placement)
        return SearchResult(
            placement=proof.placement,
            value=value,
            bound=value if proof.is_complete else min(value, proof.bound),
            method=self.name,
            seed=seed,
            evaluations=proof.evaluations,
            search_s=now_s() - started,
            notes=() if proof.is_complete else (why_open(incumbent, deadline),),
        )


def why_open(incumbent: Incumbent, deadline: Deadline) -> str:
    """Say what ended a proof."""
    if deadline.left_s() <= 0:
        return TIME_UP
    return NOT_BEGUN if incumbent.is_late else OPEN


def no_plan(problem: Problem, proof: Proof, deadline: Deadline, time_limit_s: float | None) -> InfeasibleError:
    """Return why there is no plan: the constraint that none meets, or the time, which did not suffice for one."""
    if np.isinf(proof.bound):
        return explain_infeasible(problem, deadline)
    within = "" if time_limit_s is None else f" within {time_limit_s:g} s"
    return UnprovenError(
        f"no feasible plan found{within}, and none proven impossible; allow more time (--time-limit), "
        "or relax the limits on units"
    )
