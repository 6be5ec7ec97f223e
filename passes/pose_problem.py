"""Reduce the draft to the arrays that a search sees."""

from dataclasses import dataclass
from typing import ClassVar

from heterps_compile.cost.layer_times import layer_times
from heterps_compile.cost.pose import pose_problem

from .drafts import Annotated, Posed, advance


@dataclass(frozen=True, slots=True)
class PoseProblem:
    """Estimate every layer on every device type and state the search problem."""

    name: ClassVar[str] = "pose-problem"

    def __call__(self, draft: Annotated) -> Posed:
        """Fill in ``times`` and ``problem``."""
        request = draft.request
        training = request.mode == "training"
        times = layer_times(draft.layers, draft.costs, draft.cluster, draft.measurements, training=training)
        problem = pose_problem(draft.layers, draft.costs, times, request)
        return advance(draft, Posed, times=times, problem=problem)
