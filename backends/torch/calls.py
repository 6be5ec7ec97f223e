"""How each op is written in a stage's source: as people write it where that is the same op, else by its full name.

Left out: ops of other libraries than PyTorch, which a written stage could not import.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from .literals import literal

_FUNCTIONS = {
    **dict.fromkeys(
        (
            "adaptive_avg_pool1d", "avg_pool1d", "avg_pool3d", "celu", "elu", "gelu", "hardswish", "hardtanh",
            "leaky_relu", "linear", "max_pool1d", "max_pool2d", "max_pool3d", "mish", "one_hot", "pad", "pixel_shuffle",
            "pixel_unshuffle", "relu6", "scaled_dot_product_attention", "silu", "softplus",
        ),
        "F",
    ),
    **dict.fromkeys(
        (
            "abs", "addmm", "amax", "amin", "arange", "argmax", "baddbmm", "batch_norm", "bitwise_not", "bmm", "ceil",
            "clamp", "conv1d", "cos", "cumprod", "cumsum", "diff", "dropout", "embedding", "erf", "exp", "floor",
            "full", "full_like", "group_norm", "instance_norm", "isnan", "layer_norm", "log", "logaddexp",
            "logical_and", "logical_not", "logical_or", "logsumexp", "matmul", "maximum", "minimum", "mm", "neg",
            "ones", "ones_like", "reciprocal", "relu", "relu_", "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt",
            "square", "take_along_dim", "tanh", "zeros", "zeros_like",
        ),
        "torch",
    ),
}  # fmt: skip
_FUNCTION_OVERLOADS = {
    "aten.arange.start": "torch.arange",
    "aten.arange.start_step": "torch.arange",
    "aten.cat.default": "torch.cat",
    "aten.avg_pool2d.default": "F.avg_pool2d",
    "aten.conv2d.default": "torch.conv2d",
    "aten.einsum.default": "torch.einsum",
    "aten.gru.input": "torch.gru",
    "aten.lstm.input": "torch.lstm",
    "aten.softmax.int": "torch.softmax",
    "aten.log_softmax.int": "torch.log_softmax",
    "aten.stack.default": "torch.stack",
    "aten.where.self": "torch.where",
    "aten.where.ScalarOther": "torch.where",
}
_METHODS = {
    "aten.add_.Tensor": "add_",
    "aten.argsort.default": "argsort",
    "aten.chunk.default": "chunk",
    "aten.clone.default": "clone",
    "aten.contiguous.default": "contiguous",
    "aten.copy_.default": "copy_",
    "aten.detach.default": "detach",
    "aten.detach_.default": "detach_",
    "aten.expand.default": "expand",
    "aten.expand_as.default": "expand_as",
    "aten.flip.default": "flip",
    "aten.gather.default": "gather",
    "aten.item.default": "item",
    "aten.index_select.default": "index_select",
    "aten.flatten.using_ints": "flatten",
    "aten.masked_fill.Scalar": "masked_fill",
    "aten.mean.dim": "mean",
    "aten.mul_.Tensor": "mul_",
    "aten.permute.default": "permute",
    "aten.new_ones.default": "new_ones",
    "aten.new_zeros.default": "new_zeros",
    "aten.repeat.default": "repeat",
    "aten.reshape.default": "reshape",
    "aten.roll.default": "roll",
    "aten.scatter_add.default": "scatter_add",
    "aten.select.int": "select",
    "aten.split.Tensor": "split",
    "aten.split_with_sizes.default": "split",
    "aten.squeeze.dim": "squeeze",
    "aten.sum.dim_IntList": "sum",
    "aten.sym_size.int": "size",
    "aten.t.default": "t",
    "aten.topk.default": "topk",
    "aten.type_as.default": "type_as",
    "aten.unbind.int": "unbind",
    "aten.squeeze.dims": "squeeze",
    "aten.to.device": "to",
    "aten.to.dtype": "to",
    "aten.transpose.int": "transpose",
    "aten.unsqueeze.default": "unsqueeze",
    "aten.view.default": "view",
}
_INFIX = {
    "aten.add.Tensor": "+",
    "aten.sub.Tensor": "-",
    "aten.mul.Tensor": "*",
    "aten.div.Tensor": "/",
    "aten.pow.Tensor_Scalar": "**",
    "aten.pow.Tensor_Tensor": "**",
    "aten.eq.Tensor": "==",
    "aten.eq.Scalar": "==",
    "aten.ne.Scalar": "!=",
    "aten.lt.Scalar": "<",
    "aten.lt.Tensor": "<",
    "aten.gt.Tensor": ">",
    "aten.le.Tensor": "<=",
    "aten.le.Scalar": "<=",
    "aten.gt.Scalar": ">",
    "aten.ge.Scalar": ">=",
    "aten.__and__.Tensor": "&",
}
_ON_NUMBERS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.floordiv: "//", operator.truediv: "/",
    operator.mod: "%", operator.pow: "**", operator.eq: "==", operator.ne: "!=", operator.lt: "<",
    operator.le: "<=", operator.gt: ">", operator.ge: ">=", operator.and_: "&", operator.or_: "|",
}  # fmt: skip
_SYMBOLIC = {
    torch.sym_max: "torch.sym_max",
    torch.sym_min: "torch.sym_min",
    torch.sym_not: "torch.sym_not",
    torch.sym_ite: "torch.sym_ite",
    torch.sym_float: "torch.sym_float",
    torch.sym_int: "torch.sym_int",
    math.floor: "math.floor",
    math.ceil: "math.ceil",
    math.trunc: "math.trunc",
}

_CONTROL_FLOW = (torch.ops.higher_order.cond, torch.ops.higher_order.while_loop)

WRITTEN_AS: dict[str, str] = {
    **{f"aten.{name}.default": f"{module}.{name}" for name, module in _FUNCTIONS.items()},
    **_FUNCTION_OVERLOADS,
    **{op: f".{method}" for op, method in _METHODS.items()},
    **_INFIX,
}
"""Ops that are not written by their full name: as a function, a ``.method`` or an infix operator."""

_NOT_PINNED = ("pin_memory", False)  # what torch.export writes into every tensor made anew

_FAR_END = 2**63 - 1  # what torch writes for an open end of a slice


def can_write(node: fx.Node) -> bool:
    """Say whether a node is an op of PyTorch itself, or arithmetic on numbers."""
    if node.op in ("placeholder", "output", "get_attr"):
        return True
    if node.op != "call_function":
        return False
    if is_control_flow(node):
        return all(map(can_write, (inner for body in bodies_of(node) for inner in body.nodes)))
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target.namespace == "aten"
    return node.target in _ON_NUMBERS or node.target in _SYMBOLIC or node.target in (operator.getitem, operator.neg)


def is_control_flow(node: fx.Node) -> bool:
    """Say whether a node runs graphs that were copied with it: ``torch.cond`` or ``while_loop``."""
    return node.target in _CONTROL_FLOW and len(bodies_of(node)) == 2


def bodies_of(node: fx.Node) -> list[fx.Graph]:
    """Return the graphs that a node of control flow runs, in the order of its arguments."""
    return [arg.meta["body"] for arg in node.args if isinstance(arg, fx.Node) and "body" in arg.meta]


def write_call(node: fx.Node, find: Callable[[fx.Node], str]) -> str:
    """Write a node as an expression.

    Args:
        node: For which :func:`can_write` holds.
        find: Gives the expression of an operand: a variable or an attribute.

    Raises:
        TypeError: for an argument that has no literal.
    """
    target: Any = node.target
    args = [literal(a, find) for a in node.args]
    named = [f"{key}={literal(value, find)}" for key, value in node.kwargs.items() if (key, value) != _NOT_PINNED]
    if target is operator.getitem:
        return f"{args[0]}[{args[1]}]"
    if target is operator.neg:
        return f"-{args[0]}"
    if target in _ON_NUMBERS:
        return f"{args[0]} {_ON_NUMBERS[target]} {args[1]}"
    if target in _SYMBOLIC:
        return f"{_SYMBOLIC[target]}({', '.join(args)})"
    form = WRITTEN_AS.get(str(target), "")
    is_method = form.startswith(".")
    if is_method and isinstance(node.args[0], fx.Node):
        return f"{args[0]}{form}({', '.join(args[1:] + named)})"
    if form and not is_method and form[0].isalpha():
        return f"{form}({', '.join(args + named)})"
    if form and not is_method and len(args) == 2 and not named and isinstance(node.args[0], fx.Node):
        return f"{args[0]} {form} {args[1]}"
    if str(target) == "aten.index.Tensor" and not named and isinstance(node.args[0], fx.Node):
        picked: Any = node.args[1]
        return f"{args[0]}[{', '.join(':' if i is None else literal(i, find) for i in picked)}]"
    if str(target) == "aten.slice.Tensor" and not named:
        indexed = _slice(node, args)
        if indexed:
            return indexed
    return f"torch.ops.{target}({', '.join(args + named)})"


def _slice(node: fx.Node, args: list[str]) -> str:
    """Write a slice with brackets, or give "" where it has no such form."""
    given: tuple[Any, ...] = (*node.args, *(None, 0, None, None, 1)[len(node.args) :])
    _, dim, first, end, stride = given
    if not isinstance(dim, int) or dim < -1:
        return ""
    start = args[2] if first not in (None, 0) else ""
    stop = args[3] if end not in (None, _FAR_END) else ""
    step = f":{args[4]}" if stride != 1 else ""
    before = "..., " if dim == -1 else ":, " * dim
    return f"{args[0]}[{before}{start}:{stop}{step}]"
