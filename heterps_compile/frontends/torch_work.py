"""The work of every node of a torch program, looked up in the table of ops.

Left out: nodes that PyTorch would fuse; each is measured by itself.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from heterps_compile.escape import printable
from heterps_compile.ir.graph import OpKind
from heterps_compile.packages import PYTORCH

from .torch_memory import Order, storages
from .torch_ops import OPS, UNKNOWN, Call, Shape, module_op, plain_name
from .torch_program import Program
from .torch_symbols import Symbols

_OWN_MODULES = (PYTORCH, "_operator", "operator", "builtins", "math")
_GATHERS = frozenset({"index", "index_select", "gather", "take", "getitem"})


@dataclass(frozen=True, slots=True)
class NodeWork:
    """What a node does: its op in words, its kind, its floating-point operations."""

    op: str
    kind: OpKind
    flops: int


def measure_nodes(program: Program, order: Order, symbols: Symbols) -> tuple[dict[fx.Node, NodeWork], list[str]]:
    """Return the work of every node, and a note on every op that is in no table."""
    survey = _Survey(program, order, symbols)
    work = {node: survey.measure(node) for node in program.graph.nodes if node.op.startswith("call_")}
    return work, survey.notes


class _Survey:
    """Goes over the nodes in order, and knows what is a parameter or merely another view or dtype of one."""

    def __init__(self, program: Program, order: Order, symbols: Symbols) -> None:
        self.program, self.order, self.symbols = program, order, symbols
        self.notes: list[str] = []
        self._from_parameter: set[fx.Node] = {n for n in program.graph.nodes if n.op == "get_attr"}

    def measure(self, node: fx.Node) -> NodeWork:
        label, name = _names(node, self.program)
        kind, formula = OPS.get(name, UNKNOWN)
        call = self._call(node)
        kind = self._refine(kind, name, node, call)
        if name not in OPS:
            self._note(node, label, "is in no table")
        flops = 0
        if kind not in (OpKind.VIEW, OpKind.MOVE):
            try:
                flops = int(formula(call))
            except (IndexError, ValueError):
                self._note(node, label, "takes other operands than its formula knows")
                flops = sum(map(math.prod, call.outputs))
        elif node.all_input_nodes and set(node.all_input_nodes) <= self._from_parameter:
            self._from_parameter.add(node)
        return NodeWork(label, kind, flops)

    def _note(self, node: fx.Node, label: str, fault: str) -> None:
        self.notes.append(
            f"op {printable(label)!r} (node {node.name!r}) {fault}; its work is taken for one operation per element "
            f"it makes"
        )

    def _call(self, node: fx.Node) -> Call:
        inputs: list[Shape] = []
        parameters: list[int] = []
        for operand in pytree.tree_leaves((node.args, dict(node.kwargs))):
            if isinstance(operand, fx.Node):
                for tensor in _tensors(operand.meta.get("val")):
                    if operand in self._from_parameter:
                        parameters.append(len(inputs))
                    inputs.append(self.symbols.shape(tensor))
        if node.op == "call_module":
            held = [*self.program.modules[str(node.target)].parameters()]
            parameters += range(len(inputs), len(inputs) + len(held))
            inputs += [tuple(tensor.shape) for tensor in held]
        outputs = tuple(self.symbols.shape(tensor) for tensor in _tensors(node.meta.get("val")))
        plain = tuple(None if isinstance(a, fx.Node) else a for a in node.args)
        return Call(tuple(inputs), outputs, tuple(parameters), plain, dict(node.kwargs))

    def _refine(self, kind: OpKind, name: str, node: fx.Node, call: Call) -> OpKind:
        """Tell apart what the name alone does not: products of activations, gathers from tables, views that copy."""
        if kind is OpKind.GEMM and not any(len(call.inputs[i]) > 1 for i in call.parameters):
            return OpKind.MATMUL
        if kind is OpKind.EMBEDDING and not call.parameters:
            return OpKind.MOVE
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return kind
        if name in _GATHERS and 0 in call.parameters and len(call.inputs) > 1 and len(call.inputs[0]) > 1:
            return OpKind.EMBEDDING if _is_table(node) else OpKind.MOVE
        if kind in (OpKind.CONSTANT, OpKind.SHAPE) or node.name in self.order.writes:
            return kind
        if any(storages(node) & storages(source) for source in node.all_input_nodes):
            return OpKind.VIEW
        return OpKind.MOVE if kind is OpKind.VIEW else kind


def _names(node: fx.Node, program: Program) -> tuple[str, str]:
    """Return a node's op in the source's words, and its name in the table, or ""."""
    target = node.target
    if node.op == "call_module":
        cls = type(program.modules[str(target)])
        return f"{cls.__module__}.{cls.__qualname__}", _module_name(cls)
    if node.op == "call_method":
        return f"Tensor.{target}", plain_name(str(target))
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, name = target._schema.name.partition("::")
        return str(target), plain_name(name) if namespace == "aten" else ""
    if isinstance(target, torch._ops.HigherOrderOperator):
        name = str(target.name())  # type: ignore[no-untyped-call]  # torch has not annotated it
        return f"higher_order.{name}", name
    name, module = getattr(target, "__name__", ""), getattr(target, "__module__", None) or ""
    label = f"{module}.{name}" if module else name or type(target).__name__
    if target is getattr:
        attribute = str(node.args[1])
        return f"getattr.{attribute}", attribute if attribute in OPS else "getattr"
    # a method descriptor or a builtin of torch._C has no module: torch.relu, torch.Tensor.add
    is_own = not module or module.partition(".")[0] in _OWN_MODULES
    return label, plain_name(name) if is_own else ""


def _module_name(cls: type) -> str:
    return module_op(cls.__name__) if cls.__module__.startswith("torch.nn.") else ""


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def _is_table(node: fx.Node) -> bool:
    """Say whether rows are gathered from a trainable table."""
    value = node.all_input_nodes[0].meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.requires_grad
