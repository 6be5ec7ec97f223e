"""What the torch backend does with models of the family ``"onnx"``.

The oracle is ONNX Runtime's run of the whole model; inputs are arrays, as that takes them.

Left out: PyTorch's own models (``backend.py``).
"""

from heterps_compile.backends.onnx_stage.stage_models import stage_models
from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.frontends.onnx_shapes import DTYPES
from heterps_compile.ir.graph import OPAQUE, Graph
from heterps_compile.ir.partition import Partition, cut_graph, tied_names

from .from_onnx import ModelConstants, convert_model, find_unsupported
from .onnx_stage import OnnxStage

_NUMBERS = {name: number for number, name in DTYPES.items()}


def build_onnx_stages(graph: Graph, partition: Partition) -> tuple[OnnxStage, ...]:
    """Turn every stage into a module; stages that read the same initializer share its tensor.

    Raises:
        UnsupportedOpError: naming the first node that the table cannot run.
        BackendError: naming the stage and what cannot be built.
    """
    constants = constants_of(graph)
    stages = []
    for model, cut in zip(stage_models(graph, partition), partition.stages, strict=True):
        stage = convert_model(model, constants, index=cut.index, outputs=cut.outputs)
        stage.__dict__["tied_as"] = tied_names(graph, cut)
        stages.append(stage)
    return tuple(stages)


def constants_of(graph: Graph) -> ModelConstants:
    """Return what the stages of a graph share."""

    def is_weight(name: str) -> bool | None:
        parameter = graph.parameters.get(name)
        return None if parameter is None else parameter.kind == "weight"

    def number(name: str) -> int:
        known = graph.values.get(name) or graph.parameters.get(name)
        return 0 if known is None or known.dtype == OPAQUE else _NUMBERS[known.dtype]

    return ModelConstants(is_weight, number)


def may_read_elements(graph: Graph) -> bool:
    """Say whether a node may branch on elements of a tensor or take a shape from them, as no source can."""
    (stage,) = build_onnx_stages(graph, cut_graph(graph, [range(len(graph.nodes))]))
    return stage.reads_elements


def unsupported_in_onnx(graph: Graph) -> list[UnsupportedNode]:
    """Return the nodes of a graph that the table cannot run."""
    model = graph.source.model
    nodes = list(model.graph)
    return find_unsupported([nodes[node.origin] for node in graph.nodes], model.graph.opset_imports)
