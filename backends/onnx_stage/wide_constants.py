"""Numbers in a float64 model, which PyTorch's exporter rounds to float32 on the way, as they were written.

It writes a number of the program as a float32 constant and a Cast to float64. The program has the number itself.

Left out: attributes of ONNX ops, which are float32 by definition, and numbers that the exporter works out itself.
"""

import math
from collections import Counter

import numpy as np
import onnx_ir as ir
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

_CASTS = ("Cast", "CastLike")


def restore_wide_constants(model: ir.Model, program: ExportedProgram) -> None:
    """Give constants that are cast to float64 the numbers of the program they were made from; in place."""
    written = _numbers(program)
    for node in list(model.graph):
        rounded = _rounded(node)
        if rounded is not None and rounded in written:
            made = ir.node("Constant", [], {"value": ir.tensor(np.float64(written[rounded]))})
            made.outputs[0].type, made.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
            model.graph.insert_before(node, made)
            node.outputs[0].replace_all_uses_with(made.outputs[0], replace_graph_outputs=True)


def _numbers(program: ExportedProgram) -> dict[float, float]:
    """Return the numbers of a program by what float32 makes of them, where that is another one."""
    leaves = (leaf for node in program.graph.nodes for leaf in pytree.tree_leaves((node.args, node.kwargs)))
    exact = dict.fromkeys(leaf for leaf in leaves if type(leaf) is float and math.isfinite(leaf))
    with np.errstate(over="ignore"):
        rounded = [(float(np.float32(number)), number) for number in exact]
    times = Counter(near for near, _ in rounded)
    return {near: number for near, number in rounded if times[near] == 1}  # of two that round to one, which was it?


def _rounded(node: ir.Node) -> float | None:
    """Return the float32 number that a node casts to float64, or None."""
    value = node.inputs[0] if node.op_type in _CASTS and node.domain == "" else None
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype is not ir.DataType.FLOAT or tensor.size != 1 or not _is_wide(node):
        return None
    return float(tensor.numpy().reshape(-1)[0])


def _is_wide(node: ir.Node) -> bool:
    if node.op_type == "Cast":
        return node.attributes["to"].as_int() == ir.DataType.DOUBLE
    like = node.inputs[1]
    return like is not None and like.dtype is ir.DataType.DOUBLE
