"""What the jax backend does with the stages of a graph: build, write and read them.

Left out: what jax itself is not needed for (``backend.py``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from heterps_compile.backends.contract import Stage
from heterps_compile.backends.onnx_stage.stage_models import training_models, unwritable_nodes
from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.errors import BackendError
from heterps_compile.ir.graph import ONNX, OPAQUE, TORCH, Graph
from heterps_compile.ir.partition import Boundary, Partition, StageCut, tied_names

from .data_dependence import find_dependent
from .export import export_stablehlo
from .lower_onnx import find_unsupported, lower_model
from .print_stage import print_stage
from .program import Program
from .read_stage import read_stage
from .stage import JaxStage, as_array, buffers_put_back, lean_stages, nothing_drawn
from .table import declared_ops
from .weights import save_parameters

__all__ = [
    "buffers_put_back",
    "build_stages",
    "declared_ops",
    "lean_stages",
    "nothing_drawn",
    "read_stages",
    "unsupported_nodes",
    "write_stages",
]

_LOOPS = frozenset(f"higher_order.{name}" for name in ("while_loop", "scan", "map_impl"))


def build_stages(graph: Graph, partition: Partition) -> tuple[JaxStage, ...]:
    """Build every stage in memory.

    Raises:
        UnsupportedOpError: naming stage, node and op that the table does not have.
        BackendError: naming stage and node.
    """
    kinds = _kinds(graph)
    described = {name: _describe(graph, name) for name, value in graph.values.items() if value.dtype != OPAQUE}
    models = training_models(graph, partition)
    return tuple(
        JaxStage.of(_with_unread(graph, cut, lower_model(model, cut.index, kinds, described, updates)))
        for (model, updates), cut in zip(models, partition.stages, strict=True)
    )


def _kinds(graph: Graph) -> dict[str, str]:
    """Return what every parameter is; a weight that is not trained is a buffer to a pure function."""
    kinds = {name: parameter.kind for name, parameter in graph.parameters.items()}
    if graph.family == TORCH:
        kinds |= {name: "buffer" for name in kinds if not graph.source.tensors[name].requires_grad}
    return kinds


def _with_unread(graph: Graph, cut: StageCut, program: Program) -> Program:
    """Add further names of parameters, and what a model of PyTorch holds and never reads, as its own stages do."""
    tied_as, parameters, weights = tied_names(graph, cut), dict(program.parameters), set(program.weights)
    if graph.family == TORCH:
        from heterps_compile.frontends.torch_program import storage_key  # noqa: PLC0415 - torch only for torch models

        tensors = graph.source.tensors
        # what is changed and read by no node is state all the same, as is what no output depends on
        parameters |= {n: as_array(tensors[n]) for n in program.updates if n not in parameters}
        held = {tied_as.get(name, name) for name in parameters}
        for name in sorted(cut.parameters, key=tied_as.__contains__):  # the name that the plan has goes first
            storage = tied_as.get(name, name)
            if storage not in held and graph.parameters[name].kind != "constant":
                held.add(storage)
                parameters[name] = as_array(tensors[name])
                weights |= {name} if tensors[name].requires_grad else set()
        for name in filter(program.parameters.__contains__, cut.parameters):
            for unread in graph.source.companions.get(name, ()):
                tensor = tensors[unread]
                if storage_key(unread, tensor) == storage_key(name, tensors[name]):
                    tied_as[unread] = graph.parameters[name].storage
                elif unread not in graph.source.transient:
                    parameters[unread] = as_array(tensor)
                    weights |= {unread} if tensor.requires_grad else set()
    return replace(program, tied_as=tied_as, parameters=parameters, weights=frozenset(weights))


def _describe(graph: Graph, name: str) -> str:
    """Return dtype and shape as a comment has it: ``float32[batch, 8]``."""
    value = graph.values[name]
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"


def unsupported_nodes(graph: Graph) -> list[UnsupportedNode]:
    """Return the nodes that the table does not have; of a PyTorch model those that ONNX has not, and loops."""
    if graph.family != ONNX:
        loops = [node for node in graph.nodes if node.op in _LOOPS]
        return [
            *unwritable_nodes(graph),
            *(UnsupportedNode(n.name, n.op, "torch", 1, "the jax backend has no loops of PyTorch's") for n in loops),
            *_data_sizes(graph),
        ]
    model = graph.source.model
    all_nodes, opsets = list(model.graph), model.graph.opset_imports
    nodes = [all_nodes[node.origin] for node in graph.nodes]
    return find_unsupported(nodes, opsets) or find_dependent(nodes, opsets, graph.parameters)


def _data_sizes(graph: Graph) -> Iterator[UnsupportedNode]:
    """Give, with all of them in its reason, the first node of a PyTorch model that makes a size out of elements."""
    from heterps_compile.frontends.torch_data_sizes import all_told, data_sizes  # noqa: PLC0415 - torch for its models

    makers = data_sizes(graph.source.graph.nodes)
    by_name = {node.name: node for node in graph.nodes}
    reason = f"jax must know shapes before it runs, and sizes depend on data: {all_told(makers)}"
    for node in list(makers.values())[:1]:
        yield UnsupportedNode(node.name, by_name[node.name].op, "torch", 1, reason)


def write_stages(
    graph: Graph, stages: Sequence[Stage], cuts: Sequence[StageCut], directory: Path, *, stablehlo: bool
) -> list[list[str]]:
    """Write source and parameters of every stage, and where asked its StableHLO.

    Raises:
        BackendError: naming stage, node and op of what cannot be written.
    """
    written = []
    for stage, cut in zip(stages, cuts, strict=True):
        if not isinstance(stage, JaxStage) or stage.program is None:
            raise BackendError(
                f"stage {cut.index} is a {type(stage).__name__} that the jax backend did not build from a model"
            )
        names = [f"stage_{cut.index}_jax.py", f"stage_{cut.index}.safetensors"]
        (directory / names[0]).write_text(print_stage(stage.program, graph.name), encoding="ascii")
        save_parameters(stage.arrays, directory / names[1], cut.index)
        if stablehlo:
            names.append(f"stage_{cut.index}.stablehlo")
            (directory / names[2]).write_bytes(_stablehlo(graph, stage, cut.index))
        written.append(names)
    return written


def _stablehlo(graph: Graph, stage: JaxStage, index: int) -> bytes:
    """Export a stage for the shapes the graph has at its bindings."""
    if stage.known_inputs:
        raise BackendError(
            f"stage {index} cannot be exported: shapes in it depend on the elements of {sorted(stage.known_inputs)}, "
            f"which another stage computes; cut elsewhere"
        )
    return export_stablehlo(stage, [np.zeros(graph.shape(n), np.dtype(graph.values[n].dtype)) for n in stage.inputs])


def read_stages(directory: Path, files: Sequence[Sequence[str]], cuts: Sequence[Boundary]) -> tuple[JaxStage, ...]:
    """Read stages back; see ``read_stage.py``.

    Raises:
        BackendError: naming stage and file.
    """
    stages = []
    for (source, parameters, *_), cut in zip(files, cuts, strict=True):
        stage = read_stage(directory / source, directory / parameters, cut.index)
        if (stage.inputs, stage.outputs) != (tuple(cut.inputs), tuple(cut.outputs)):
            raise BackendError(
                f"stage {cut.index}: {source!r} is not the stage of this plan: it takes {list(stage.inputs)} and "
                f"gives {list(stage.outputs)}; compile the model again"
            )
        stages.append(stage)
    return tuple(stages)
