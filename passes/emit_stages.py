"""Cut the graph where the stages are, check the laws, and have a backend build what runs.

The backend comes in as a function, so that passes know no backend.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Partition, cut_graph
from heterps_compile.plan.plan import PlannedStage

from .contract import Draft, refine


@dataclass(frozen=True, slots=True)
class EmitStages:
    """Cut the graph into its stages and build them."""

    build: Callable[[Graph, Partition, Sequence[PlannedStage]], tuple[Any, ...]]
    name: ClassVar[str] = "emit-stages"
    requires: ClassVar[tuple[str, ...]] = ("layers", "stages", "schedule")
    ensures: ClassVar[tuple[str, ...]] = ("partition", "runnable")

    def __call__(self, draft: Draft) -> Draft:
        """Fill in ``partition`` and ``runnable``, and the inputs and outputs of every stage."""
        assert draft.layers is not None  # noqa: S101 - run_passes has checked it; this tells the type checker
        assert draft.stages is not None  # noqa: S101
        nodes_of = {layer.name: layer.nodes for layer in draft.layers.layers}
        groups = [[node for layer in stage.layers for node in nodes_of[layer]] for stage in draft.stages]
        partition = cut_graph(draft.graph, groups)
        stages = tuple(
            replace(stage, inputs=cut.inputs, outputs=cut.outputs)
            for stage, cut in zip(draft.stages, partition.stages, strict=True)
        )
        return refine(draft, stages=stages, partition=partition, runnable=self.build(draft.graph, partition, stages))
