"""What the torch backend does with models of the family ``"onnx"``.

The oracle is ONNX Runtime's run of the whole model; inputs are arrays, as that takes them.

Left out: PyTorch's own models (``backend.py``).
"""

from heterps_compile.backends.onnx_stage.stage_models import stage_models
from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Partition, cut_graph, tied_names

from .from_onnx import constants_of, convert_model, find_unsupported
from .onnx_stage import OnnxStage
from .own_sizes import Elements, with_own_sizes


def build_onnx_stages(graph: Graph, partition: Partition) -> tuple[OnnxStage, ...]:
    """Turn every stage into a module; stages that read the same initializer share its tensor.

    Raises:
        UnsupportedOpError: naming the first node that the table cannot run.
        BackendError: naming the stage and what cannot be built.
    """
    constants = constants_of(graph)
    grown, made = zip(*(with_own_sizes(graph, cut) for cut in partition.stages), strict=True)
    stages = []
    for model, cut, inputs in zip(stage_models(graph, Partition(grown, ())), partition.stages, made, strict=True):
        hosts = [name for name, one in inputs.items() if isinstance(one, Elements)]
        stage = convert_model(model, constants, index=cut.index, outputs=cut.outputs, hosts=hosts)
        stage.__dict__.update(tied_as=tied_names(graph, cut), inputs=cut.inputs, made=inputs)
        stages.append(stage)
    return tuple(stages)


def may_read_elements(graph: Graph) -> bool:
    """Say whether a node may branch on elements of a tensor or take a shape from them, as no source can."""
    (stage,) = build_onnx_stages(graph, cut_graph(graph, [range(len(graph.nodes))]))
    return stage.reader_of_elements is not None


def unsupported_in_onnx(graph: Graph) -> list[UnsupportedNode]:
    """Return the nodes of a graph that the table cannot run."""
    model = graph.source.model
    nodes = list(model.graph)
    return find_unsupported([nodes[node.origin] for node in graph.nodes], model.graph.opset_imports)
