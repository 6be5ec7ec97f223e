"""A PyTorch stage as an ONNX model, by ``torch.onnx.export``.

The stage is traced with ``torch.export`` on examples of what crosses into it, dynamic where the graph is, and
translated; what PyTorch's exporter writes badly is rewritten before (``embedding_bags.py``), shapes computed from
constants are folded after. Parameters are never folded: they stay under their own names, as they are.

What a node changes in place (a running mean) is one more output where that is asked for: an ONNX model keeps no state.

Left out: gradients.
"""

import re
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import torch
from torch.export import Dim
from torch.export.graph_signature import InputKind

from heterps_compile.backends.torch.stage import TorchStage, build_stage
from heterps_compile.errors import BackendError
from heterps_compile.escape import printable, shorten
from heterps_compile.frontends.torch_data_sizes import all_told, data_sizes
from heterps_compile.frontends.torch_marks import marks_kept
from heterps_compile.frontends.torch_program import quiet_tracing
from heterps_compile.frontends.torch_reasons import whole_reason
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import StageCut, cut_graph

from .embedding_bags import rewrite_embedding_bags
from .exporter_registry import read_once
from .missing_translations import MISSING, OPSET
from .quiet_export import quiet_export
from .rewrite_edges import rewrite_edges
from .rewrite_operands import rewrite_operands
from .rewrite_training import changed_buffers, return_changed, rewrite_training
from .tidy import tidy
from .training_ops import TRANSLATIONS
from .unroll_projected import unroll_projected
from .wide_constants import restore_wide_constants

_REASON_SHOWN = 300
_WAY_OUT = "the backend torch runs the model as it is"
_NODE_AT_FAULT = re.compile(r"translating node %(\w+) :")
_LEAST = 2
_FORMAT = 10  # what the exporter writes


def export_stage(graph: Graph, cut: StageCut) -> ir.Model:
    """Return one stage of a graph of the family ``"torch"`` as an ONNX model: what it does in evaluation mode.

    Raises:
        BackendError: naming stage, node and op of what ONNX does not have.
    """
    return _export(graph, cut, build_stage(graph, cut))


def export_training(graph: Graph, cut: StageCut) -> tuple[ir.Model, dict[str, str]]:
    """Return one stage as a model with two ops of our own (``training_ops.py``), for what it does in training mode.

    Returns:
        The model, and by the names of the buffers that the stage changes those of the outputs, after the cut's own,
        that are their new values.

    Raises:
        BackendError: naming stage, node and op of what ONNX does not have.
    """
    # PyTorch cannot decompose what changes a tensor that it holds under two names
    stage = build_stage(graph, cut, with_unread=False)
    changed = changed_buffers(graph, cut)
    return_changed(stage, graph, cut, changed)
    model = _export(graph, cut, stage, changed)
    outputs = [value.name or "" for value in model.graph.outputs][len(cut.outputs) :]
    return model, dict(zip(changed, outputs, strict=True))


def _export(graph: Graph, cut: StageCut, stage: TorchStage, changed: tuple[str, ...] | None = None) -> ir.Model:
    """Export a stage that gives ``changed`` after its outputs; None in evaluation mode."""
    if not cut.inputs and not stage.parameter_names:
        return tidy(_constants(stage), graph, cut, {})
    program = unroll_projected(_trace(graph, cut, stage))
    rewrite_operands(program)
    rewrite_embedding_bags(program, cut.index)
    rewrite_edges(program, cut.index)
    if changed is not None:
        rewrite_training(program, cut.index)
    originals = _name_harmlessly(program)
    try:
        # with gradients on, PyTorch would choose other kernels than it traced, whose results lie otherwise in memory
        with quiet_export(), read_once(), torch.no_grad():
            exported = torch.onnx.export(
                program,
                dynamo=True,
                optimize=False,
                verbose=False,
                custom_translation_table={**MISSING, **({} if changed is None else TRANSLATIONS)},
            )
    except Exception as error:
        raise BackendError(
            f"stage {cut.index} cannot become ONNX{_on_data(graph, cut)}: {_reason(error)}; {_WAY_OUT}"
        ) from error
    assert exported is not None  # noqa: S101 - it is with dynamo=True; this tells the type checker
    restore_wide_constants(exported.model, program)
    return tidy(exported.model, graph, cut, originals, changed or ())


def _name_harmlessly(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Rename a program's tensors in place, and give their names by the new ones.

    The exporter writes Python code that reads tensors as attributes; a name from a model must not stand in it.
    """
    signature = program.graph_signature
    targets = [spec.target for spec in signature.input_specs if spec.kind is not InputKind.USER_INPUT and spec.target]
    harmless = {target: f"tensor{number}" for number, target in enumerate(dict.fromkeys(targets))}
    for spec in (*signature.input_specs, *signature.output_specs):
        if spec.target in harmless:
            spec.target = harmless[spec.target]
    tables: tuple[dict[str, Any], ...] = (program.state_dict, program.constants)
    for table in tables:
        kept = {harmless[name]: value for name, value in table.items() if name in harmless}
        table.clear()  # what no node reads goes
        table.update(kept)
    return {name: target for target, name in harmless.items()}


def _constants(stage: TorchStage) -> ir.Model:
    """Return a stage that reads nothing as what it always gives: the exporter wants at least one tensor to read."""
    with torch.no_grad():
        results = [torch.as_tensor(result) for result in stage()]
    nodes = [ir.node("Constant", [], {"value": ir.tensor(result.numpy())}) for result in results]
    for node, result in zip(nodes, results, strict=True):
        node.outputs[0].dtype, node.outputs[0].shape = ir.tensor(result.numpy()).dtype, ir.Shape(result.shape)
    graph = ir.Graph([], [node.outputs[0] for node in nodes], nodes=nodes, opset_imports={"": OPSET})
    return ir.Model(graph, ir_version=_FORMAT)


def refuse_data_sizes(graph: Graph) -> None:
    """Check, where sizes depend on data, that the model becomes ONNX in one piece; of others the stages tell.

    Raises:
        BackendError: naming the sizes with the nodes and lines that make them, and the reason.
    """
    if not data_sizes(graph.source.graph.nodes):
        return
    (whole,) = cut_graph(graph, [range(len(graph.nodes))]).stages
    try:
        export_stage(graph, whole)
    except BackendError as error:
        raise BackendError(f"{printable(graph.name)}{str(error).removeprefix('stage 0')}") from error


def _on_data(graph: Graph, cut: StageCut) -> str:
    """Say which sizes of a stage depend on data, where some do."""
    nodes = list(graph.source.graph.nodes)
    inside = {nodes[graph.nodes[i].origin] for i in cut.nodes}
    makers = {symbol: node for symbol, node in data_sizes(nodes).items() if node in inside}
    return f", where sizes depend on data ({all_told(makers)})" if makers else ""


def _trace(graph: Graph, cut: StageCut, stage: TorchStage) -> torch.export.ExportedProgram:
    fakes = {node.name: node.meta["val"] for node in graph.source.graph.nodes if node.name in stage.inputs}
    examples = tuple(_example(fakes[name], graph.bindings) for name in stage.inputs)
    dynamic = tuple(_dynamic(fakes[name]) for name in stage.inputs)
    try:
        with quiet_tracing(), marks_kept(), quiet_export(), torch.no_grad():
            return torch.export.export(
                stage, examples, dynamic_shapes=(dynamic,) if any(dynamic) else None, strict=False
            )
    except Exception as error:
        raise BackendError(
            f"stage {stage.index} cannot become ONNX{_on_data(graph, cut)}: torch.export says {_reason(error)}; "
            f"{_WAY_OUT}"
        ) from error


def _example(fake: Any, bindings: Mapping[str, int]) -> Any:
    """Return a value like the one the model was traced with: its contents do not matter."""
    if not isinstance(fake, torch.Tensor):
        return _number(fake, bindings) if isinstance(fake, torch.SymInt) else fake
    sizes = [_number(size, bindings) for size in fake.shape]
    strides = [_number(step, bindings) for step in fake.stride()]
    return torch.empty_strided(sizes, strides, dtype=fake.dtype, device=fake.device).zero_()


def _number(size: Any, bindings: Mapping[str, int]) -> int:
    """Return the number that a size had in the example; one that depends on data has that it is planned for."""
    if isinstance(size, int):
        return size
    if size.node.has_hint():
        return int(size.node.hint)
    # 0 and 1 would become constants of what is traced
    planned = {symbol: max(_LEAST, bindings.get(str(symbol), _LEAST)) for symbol in size.node.expr.free_symbols}
    return int(size.node.expr.xreplace(planned))


def _dynamic(fake: Any) -> Any:
    """Return what ``torch.export`` is told of an input's dimensions."""
    if isinstance(fake, torch.Tensor):
        return {axis: Dim.DYNAMIC for axis, size in enumerate(fake.shape) if isinstance(size, torch.SymInt)} or None
    return Dim.DYNAMIC if isinstance(fake, torch.SymInt) else None


def _reason(error: BaseException) -> str:
    """Return the innermost cause on one line, with the node at fault: the outer ones are advice to report a bug."""
    node = ""
    while error.__cause__ is not None:
        found = _NODE_AT_FAULT.search(str(error))
        node = f"node {found[1]!r}: " if found else node
        error = error.__cause__
    return node + shorten(whole_reason(error), _REASON_SHOWN)
