"""Reduce the draft to the arrays that a search sees."""

from dataclasses import dataclass
from typing import ClassVar

from heterps_compile.cost.pose import pose_problem

from .contract import Draft, refine


@dataclass(frozen=True, slots=True)
class PoseProblem:
    """Estimate every layer on every device type and state the search problem."""

    name: ClassVar[str] = "pose-problem"
    requires: ClassVar[tuple[str, ...]] = ("layers", "costs")
    ensures: ClassVar[tuple[str, ...]] = ("problem",)

    def __call__(self, draft: Draft) -> Draft:
        """Fill in ``problem``."""
        assert draft.layers is not None  # noqa: S101 - run_passes has checked it; this tells the type checker
        assert draft.costs is not None  # noqa: S101
        request = draft.request
        problem = pose_problem(
            draft.layers,
            draft.costs,
            draft.cluster,
            training=request.mode == "training",
            objective=request.objective,
            min_throughput=request.min_throughput,
            budget_per_hour=request.budget_per_hour,
            min_stages=request.min_stages,
            max_stages=request.max_stages,
            pins=request.pins,
            forbidden=request.forbidden,
            measurements=draft.measurements,
        )
        return refine(draft, problem=problem)
