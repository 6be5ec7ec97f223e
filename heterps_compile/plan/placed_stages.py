"""A placement as the stages of a plan, and back.

::

    layers     emb  emb  cat  fc   fc   fc
    types      cpu  cpu  cpu  gpu  gpu  gpu      cuts: before the last fc
    stages     [---- cpu ---] [- gpu -] [gpu]

Left out: replicas, times and memory of stages (``passes/provision.py``).
"""

from collections.abc import Mapping

from heterps_compile.cost.problem import Placement, Problem

from .planned_stage import PlannedStage


def stages_of(problem: Problem, placement: Placement) -> tuple[PlannedStage, ...]:
    """Return the stages of a placement: its maximal runs of one type, divided where it asks for a cut."""
    starts = placement.starts()
    ends = (*starts[1:], problem.layer_count)
    return tuple(
        PlannedStage(
            index,
            problem.type_names[placement.types[first]],
            problem.layer_names[first:end],
            kind=problem.type_kinds[placement.types[first]],
        )
        for index, (first, end) in enumerate(zip(starts, ends, strict=True))
    )


def placement_of(problem: Problem, home: Mapping[str, PlannedStage]) -> Placement:
    """Return the placement of stages that cover a problem, given the stage of every layer.

    Every layer has a stage, every stage is on a device type of the problem, and stages are runs of neighbours.
    """
    stages = [home[name] for name in problem.layer_names]
    types = tuple(problem.type_names.index(stage.device) for stage in stages)
    return Placement.of_stages(types, [stage.index for stage in stages])
