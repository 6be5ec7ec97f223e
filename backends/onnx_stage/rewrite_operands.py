"""Operands that PyTorch takes and its exporter does not, rewritten before it translates.

::

    number - tensor (rsub)          -> a subtraction of two tensors
    op(number, ...) for a tensor    -> a tensor without dimensions, of the dtype that the op computes with
    bool + bool                     -> or; ONNX adds numbers alone
    dropout that drops nothing      -> its input, which what changes the result in place changes too

Left out: numbers behind the first operand, which the exporter takes, and sizes.
"""

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from heterps_compile.frontends.torch_memory import is_idle_dropout, mark_idle_dropout

_aten: Any = torch.ops.aten
_REVERSED = (_aten.rsub.Scalar, _aten.rsub.Tensor)
_ADDED = (_aten.add.Tensor, _aten.add.Scalar)
_Number = (bool, int, float)


def rewrite_operands(program: ExportedProgram) -> None:
    """Rewrite such nodes of a traced stage, in place."""
    graph = program.graph
    mark_idle_dropout(graph)
    for node in [n for n in graph.nodes if n.op == "call_function"]:
        if is_idle_dropout(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            continue
        if node.target in _REVERSED:
            self, other = node.args[:2]
            alpha = node.args[2] if len(node.args) > 2 else node.kwargs.get("alpha", 1)
            node.target, node.args = _aten.sub.Tensor, (other, self)
            node.kwargs = {} if alpha == 1 else {"alpha": alpha}
        if isinstance(node.target, torch._ops.OpOverload):
            _take_tensor(graph, node)
        if node.target in _ADDED and _is_bool(node):
            _unite(graph, node)
    program.graph_module.recompile()


def _unite(graph: fx.Graph, node: fx.Node) -> None:
    """Make a sum of bools, the second times ``alpha``, what it is."""
    one, other = (_tensor(graph, node, operand) for operand in node.args[:2])
    if not node.kwargs.get("alpha", 1):
        with graph.inserting_before(node):
            other = graph.call_function(_aten.logical_xor.default, (other, other))
    node.target, node.args, node.kwargs = _aten.logical_or.default, (one, other), {}


def _take_tensor(graph: fx.Graph, node: fx.Node) -> None:
    """Make a number that stands for an op's first tensor a tensor."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    if not node.args or not isinstance(node.args[0], _Number):
        return
    if schema.arguments and isinstance(schema.arguments[0].type, torch.TensorType):
        node.args = (_tensor(graph, node, node.args[0]), *node.args[1:])


def _tensor(graph: fx.Graph, node: fx.Node, operand: Any) -> Any:
    """Return an operand as a tensor; a number takes the dtype of the tensor beside it where that is wide enough."""
    if not isinstance(operand, _Number):
        return operand
    dtype = torch.result_type(operand, operand)
    for read in node.all_input_nodes:
        value = read.meta.get("val")
        if isinstance(value, torch.Tensor):
            dtype = torch.result_type(torch.empty((1,), dtype=value.dtype, device="meta"), operand)
    with graph.inserting_before(node):
        made = graph.call_function(_aten.full.default, ([], operand), {"dtype": dtype})
    made.meta["val"] = torch.empty((), dtype=dtype, device="meta")
    return made


def _is_bool(node: fx.Node) -> bool:
    made = node.meta.get("val")
    return isinstance(made, torch.Tensor) and made.dtype == torch.bool
