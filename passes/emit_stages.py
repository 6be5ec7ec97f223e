"""Cut the graph where the stages are, check the laws, and have a backend build what runs.

The backend lies in the draft as a function, so that passes know no backend.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from heterps_compile.ir.partition import cut_graph

from .drafts import Emitted, Scheduled, advance


@dataclass(frozen=True, slots=True)
class EmitStages:
    """Cut the graph into its stages and build them, where the draft says how."""

    name: ClassVar[str] = "emit-stages"

    def __call__(self, draft: Scheduled) -> Emitted:
        """Fill in ``partition`` and ``runnable``, and the inputs and outputs of every stage."""
        nodes_of = {layer.name: layer.nodes for layer in draft.layers.layers}
        groups = [[node for layer in stage.layers for node in nodes_of[layer]] for stage in draft.stages]
        partition = cut_graph(draft.graph, groups)
        stages = tuple(
            replace(stage, inputs=cut.inputs, outputs=cut.outputs)
            for stage, cut in zip(draft.stages, partition.stages, strict=True)
        )
        runnable = () if draft.build is None else draft.build(draft.graph, partition, stages)
        return advance(draft, Emitted, stages=stages, partition=partition, runnable=runnable)
