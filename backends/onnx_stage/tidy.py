"""An exported stage as its cut says: names and shapes at the boundary, constants folded, nothing of the exporter's own.

Left out: fusing ops (the runtime does), and folding parameters (they are the model's own).
"""

from collections.abc import Mapping, Sequence, Set
from itertools import chain, count

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes import common
from onnxscript import optimizer

from heterps_compile.errors import BackendError
from heterps_compile.frontends.onnx_session import format_version
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import StageCut

_CLEAN = (
    common.RemoveUnusedNodesPass(),
    common.RemoveUnusedOpsetsPass(),
    common.IdentityEliminationPass(),
    common.CommonSubexpressionEliminationPass(),
    common.ClearMetadataAndDocStringPass(),  # it has the paths of the user's source
)


def tidy(
    model: ir.Model, graph: Graph, cut: StageCut, originals: Mapping[str, str], changed: Sequence[str] = ()
) -> ir.Model:
    """Return an exported stage, changed in place, with the boundary of its cut.

    Args:
        model: As exported.
        graph: Of the whole model.
        cut: The stage.
        originals: Names of the model's tensors by those of the initialisers they were exported under.
        changed: Tensors whose new values are further outputs, after those of the cut.

    Raises:
        BackendError: naming the stage, and the value that ONNX cannot carry.
    """
    _check_boundary(model, graph, cut, len(changed))
    common.InlinePass()(model)
    model.functions.clear()
    with np.errstate(all="ignore"):  # of branches that a Where does not take
        optimizer.fold_constants(
            model, onnx_shape_inference=True, should_fold=lambda node: _may_fold(node, graph, originals)
        )
    for step in _CLEAN:
        step(model)
    _write_constants(model.graph, {name for name, own in originals.items() if own in graph.parameters})
    _separate_outputs(model.graph)
    _name(model.graph, graph, cut, originals, changed)
    model.ir_version = format_version(model)
    model.producer_name, model.producer_version = "heterps-compile", None
    model.graph.name = f"stage_{cut.index}"
    return model


def _check_boundary(model: ir.Model, graph: Graph, cut: StageCut, further: int) -> None:
    for name in (*cut.inputs, *cut.outputs):
        if graph.values[name].dtype.startswith("complex"):
            raise BackendError(
                f"stage {cut.index} cannot become ONNX: {name!r}, which crosses it, is {graph.values[name].dtype}, and "
                f"ONNX Runtime has no such numbers; cut elsewhere (--pin), or take the backend torch"
            )
    given = len(model.graph.outputs) - further
    for kind, wanted, found in (("takes", cut.inputs, len(model.graph.inputs)), ("gives", cut.outputs, given)):
        if len(wanted) != found:
            raise BackendError(
                f"stage {cut.index} cannot become ONNX: it {kind} {len(wanted)} values ({', '.join(wanted)}), of which "
                f"{len(wanted) - found} became constants; give the model tensors there, or take the backend torch"
            )


def _may_fold(node: ir.Node, graph: Graph, originals: Mapping[str, str]) -> bool | None:
    """Refuse to fold what reads a parameter; else leave it to the optimizer."""
    read = {value.name or "" for value in node.inputs if value is not None and value.is_initializer()}
    names = {originals[name] for name in read if name in originals}
    own = any(name in graph.parameters and graph.parameters[name].kind != "constant" for name in names)
    return False if own else None


def _write_constants(model: ir.Graph, parameters: set[str]) -> None:
    """Make what is folded or lifted a node, so that every initialiser is a parameter of the whole model."""
    for name, value in list(model.initializers.items()):
        if name not in parameters:
            made = ir.node("Constant", [], {"value": value.const_value})
            made.outputs[0].type, made.outputs[0].shape = value.type, value.shape
            value.replace_all_uses_with(made.outputs[0], replace_graph_outputs=True)
            del model.initializers[name]
            made.outputs[0].name = name
            model.insert_before(model[0], made)


def _separate_outputs(graph: ir.Graph) -> None:
    """Give every output a node of its own: one may be an input, a parameter, or the same value as another."""
    seen: set[ir.Value] = set()
    for place, value in enumerate(list(graph.outputs)):
        if value.producer() is None or value in seen:
            copy = ir.node("Identity", [value])
            copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
            graph.append(copy)
            graph.outputs[place] = copy.outputs[0]
        seen.add(value)


def _name(model: ir.Graph, graph: Graph, cut: StageCut, originals: Mapping[str, str], changed: Sequence[str]) -> None:
    """Name the boundary as the cut does, parameters as the model does, and what else bears such a name otherwise."""
    fixed = {*model.inputs, *model.outputs}
    held = [(originals[name], model.initializers.pop(name)) for name in list(model.initializers)]
    taken = {*cut.inputs, *cut.outputs, *(name for name, _ in held)}
    for value in (value for node in model for value in node.outputs if value not in fixed):
        if value.name:  # an output without a name is one that is not asked for
            value.name = free_name(value.name, taken)
            taken.add(value.name)
    fakes = {node.name: node.meta.get("val") for node in graph.source.graph.nodes}
    own = len(model.outputs) - len(changed)
    for value, name in zip(list(model.outputs)[own:], changed, strict=True):
        value.name = free_name(f"{name}.new", taken)
        taken.add(value.name)
    for values, names in ((model.inputs, cut.inputs), (list(model.outputs)[:own], cut.outputs)):
        for value, name in zip(values, names, strict=True):
            value.name = name
            if isinstance(fakes[name], torch.Tensor):
                value.shape = ir.Shape(_dims(graph, name, fakes[name]))
    for name, value in held:
        value.name = name
        model.initializers[name] = value
    for number, node in enumerate(model):
        node.name = f"{node.op_type}_{number}"


def free_name(wish: str, taken: Set[str]) -> str:
    """Return the wished name, numbered where it is taken."""
    return next(name for name in chain((wish,), (f"{wish}_{i}" for i in count(1))) if name not in taken)


def _dims(graph: Graph, name: str, fake: torch.Tensor) -> list[int | str | None]:
    """Return numbers, names of symbols, and None for what is computed from symbols."""
    dims = zip(fake.shape, graph.values[name].shape, strict=True)
    return [dim if isinstance(size, int) or isinstance(dim, str) else None for size, dim in dims]
