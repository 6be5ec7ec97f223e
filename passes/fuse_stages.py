"""Fuse neighbours on one device type into pipeline stages.

::

    layers     emb  emb  cat  fc   fc   fc
    types      cpu  cpu  cpu  gpu  gpu  gpu      cuts: before the last fc
    stages     [---- cpu ---] [- gpu -] [gpu]

Left out: how many replicas a stage gets (``provision.py``).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.plan.plan import PlannedStage

from .drafts import Fused, Placed, advance


def fuse(problem: Problem, placement: Placement) -> tuple[PlannedStage, ...]:
    """Return the stages of a placement: its maximal runs of one type, divided where it asks for a cut."""
    starts = placement.starts()
    ends = (*starts[1:], problem.layer_count)
    return tuple(
        PlannedStage(index, problem.type_names[placement.types[first]], problem.layer_names[first:end])
        for index, (first, end) in enumerate(zip(starts, ends, strict=True))
    )


@dataclass(frozen=True, slots=True)
class FuseStages:
    """Fuse neighbours on one device type into stages."""

    name: ClassVar[str] = "fuse-stages"

    def __call__(self, draft: Placed) -> Fused:
        """Fill in ``stages``, without replicas."""
        fused = fuse(draft.problem, draft.search.placement)
        stages = tuple(replace(stage, kind=draft.cluster.device_type(stage.device).kind) for stage in fused)
        return advance(draft, Fused, stages=stages)
