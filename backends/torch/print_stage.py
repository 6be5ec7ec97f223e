"""Write a stage as Python source: one class, plain PyTorch, the model's own parameter names.

The source needs nothing but torch to be imported, and safetensors to read its weights.

Left out: the weights themselves (``weights.py``).
"""

import math
import operator
from collections.abc import Container, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from heterps_compile.backends.local_names import LocalNames
from heterps_compile.errors import BackendError
from heterps_compile.ir.graph import OPAQUE, Graph, Value

from .block_locals import BlockLocals
from .calls import bodies_of, is_control_flow, write_call
from .lower import OpGraph
from .naming import MODULE_LEVEL
from .onnx_stage import OnnxStage
from .stage import TorchStage
from .stage_template import TEMPLATE
from .weights import HeldTensor

AnyStage = TorchStage | OnnxStage

_FREED_FROM_BYTES = 2**14  # of a whole batch; smaller values live until forward returns, which reads better


def print_stage(graph: Graph, stage: AnyStage, ops: OpGraph, held: Mapping[str, HeldTensor]) -> str:
    """Write a stage's source.

    Args:
        graph: The whole model.
        stage: The stage.
        ops: Its nodes.
        held: Every tensor it holds, by name.

    Raises:
        BackendError: naming stage, node and op where an argument cannot be written.
    """
    tied = {name: tensor.saved_as for name, tensor in held.items() if tensor.saved_as != name}
    parts = {
        "INDEX": str(stage.index),
        "MODEL": ascii(graph.name)[1:-1].replace("\\", "/").replace('"', "'"),
        "TENSORS": "".join(f"    {name!a}: {tensor.described},\n" for name, tensor in held.items()),
        "TIED": "".join(f"    {name!a}: {origin!a},\n" for name, origin in tied.items()),
        "TIED_AS": "".join(f"    {name!a}: {storage!a},\n" for name, storage in stage.tied_as.items()),
        "INPUTS": "".join(f"        {name!a},\n" for name in stage.inputs),
        "OUTPUTS": "".join(f"        {name!a},\n" for name in stage.outputs),
        "FORWARD": "\n".join(_Forward(graph, stage, ops, held).lines()),
    }
    for key in ("TENSORS", "TIED", "TIED_AS"):
        parts[key] = f"{{\n{parts[key]}}}" if parts[key] else "{}"
    for key in ("INPUTS", "OUTPUTS"):
        parts[key] = f"(\n{parts[key]}    )" if parts[key] else "()"
    # one pass, so that a placeholder's name inside what was put in stays as it is
    pieces = TEMPLATE.split("@@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


class _Forward:
    """Writes the method that runs a stage's nodes."""

    def __init__(self, graph: Graph, stage: AnyStage, ops: OpGraph, held: Container[str]) -> None:
        self.graph, self.stage, self.ops = graph, stage, ops
        self._names = LocalNames(MODULE_LEVEL)
        self._blocks = BlockLocals([ops.parameters[read] for read in _reads(ops)], held, self._names)
        self._expressions: dict[fx.Node, str] = {
            node: self._blocks.write(name) for node, name in ops.parameters.items()
        }
        self._last = {operand: node for node in ops.graph.nodes for operand in node.all_input_nodes}

    def lines(self) -> Iterator[str]:
        arguments = [self._local(node, wish) for node, wish in zip(self.ops.inputs, self.stage.inputs, strict=True)]
        yield f"    def forward(self{''.join(f', {argument}' for argument in arguments)}):"
        for argument, name in zip(arguments, self.stage.inputs, strict=True):
            yield f"        # {argument}: {_describe(self.graph.values[name])}"
        path = ""
        for node in self.ops.graph.nodes:
            if node.op == "output":
                yield self._return(node)
            elif node.op not in ("placeholder", "get_attr"):
                if node.meta.get("path", "") != path:
                    path = node.meta.get("path", "")
                    yield f"        # {ascii(path)[1:-1]}" if path else ""
                yield from self._statement(node)

    def _local(self, node: fx.Node | None, wish: str) -> str:
        name = self._names.new(wish)
        if node is not None:
            self._expressions[node] = name
        return name

    def _control_flow(self, node: fx.Node) -> Iterator[str]:
        """Write the graphs that a node runs as functions in front of it, and what calls them."""
        is_loop = "while" in str(node.target)
        args: Any = node.args  # as torch.cond and while_loop have them
        first, second = (
            self._local(None, wish) for wish in (("goes_on", "body") if is_loop else ("then_branch", "else_branch"))
        )
        for name, body in zip((first, second), bodies_of(node), strict=True):
            yield from (f"        {line}" if line else "" for line in self._function(name, body))
        if is_loop:
            carried, extra = ([self._expressions[n] for n in group] for group in args[2:4])
            result = self._local(node, "carried")
            given = ", ".join([f"*{result}", *extra])
            yield f"        {result} = ({', '.join(carried)},)"
            yield f"        while {first}({given}):"
            yield f"            {result} = {second}({given})"
        else:
            condition, given = self._expressions[args[0]], ", ".join(self._expressions[n] for n in args[3])
            yield f"        {self._local(node, 'chosen')} = {first}({given}) if {condition} else {second}({given})"

    def _function(self, name: str, body: fx.Graph) -> Iterator[str]:
        arguments = [self._local(node, str(node.name)) for node in body.nodes if node.op == "placeholder"]
        yield f"def {name}({', '.join(arguments)}):"
        self._last |= {operand: node for node in body.nodes for operand in node.all_input_nodes}
        for node in body.nodes:
            if node.op == "output":
                result = node.args[0]
                lines = [self._return(node) if isinstance(result, (tuple, list)) else f"return {self._find(result)}"]
            else:
                lines = [] if node.op in ("placeholder", "get_attr") else list(self._statement(node))
            yield from (f"    {line.removeprefix('        ')}" for line in lines)
        yield ""

    def _find(self, result: Any) -> str:
        return self._expressions[result] if isinstance(result, fx.Node) else repr(result)

    def _statement(self, node: fx.Node) -> Iterator[str]:
        if is_control_flow(node):
            yield from self._control_flow(node)
            return
        for read in node.all_input_nodes:
            if read in self.ops.parameters:
                yield from (f"        {line}" for line in self._blocks.assign(self.ops.parameters[read]))
                self._expressions[read] = self._blocks.write(self.ops.parameters[read])
        try:
            call = write_call(node, self._expressions.__getitem__)
        except TypeError as error:
            raise BackendError(
                f"stage {self.stage.index} cannot be written: node {node.name!r} ({node.target}) takes what has no "
                f"Python source: {error}; the stage runs in memory, or leave that argument out of the model"
            ) from error
        if not node.users:
            if node.target is not operator.getitem:  # a result that nobody reads
                yield f"        {call}"
            return
        name = self._local(node, str(node.meta.get("name", node.name)))
        described = self._description(node)
        yield f"        {name} = {call}{f'  # {described}' if described else ''}"
        done = [o for o in node.all_input_nodes if self._last[o] is node and o not in self.ops.parameters]
        large = [self._expressions[o] for o in done if self._size_bytes(o) >= _FREED_FROM_BYTES]
        if large:
            yield f"        del {', '.join(large)}"

    def _description(self, node: fx.Node) -> str:
        value = self.graph.values.get(str(node.meta.get("name", "")))
        if value is not None:
            return _describe(value)
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            return ""
        return _describe(Value("", str(fake.dtype).removeprefix("torch."), tuple(map(_dim, fake.shape))))

    def _size_bytes(self, node: fx.Node) -> float:
        """Return the bytes of a tensor, at the model's batch; of any size where a dimension is known by no number."""
        value = self.graph.values.get(str(node.meta.get("name", "")))
        if value is not None and all(isinstance(d, int) or d in self.graph.bindings for d in value.shape):
            return self.graph.size_bytes(value.name)
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            return 0
        if not all(isinstance(size, int) for size in fake.shape):
            return math.inf
        return math.prod(fake.shape) * fake.itemsize

    def _return(self, node: fx.Node) -> str:
        results = node.args[0]
        assert isinstance(results, (tuple, list))  # noqa: S101 - our own graphs end so; this tells the type checker
        written = [self._find(result) for result in results]
        return f"        return ({', '.join(written)}{',' if len(written) == 1 else ''})"


def _reads(ops: OpGraph) -> Iterator[fx.Node]:
    """Yield the tensors that nodes read, as often as they do; not those in the bodies of control flow."""
    for node in ops.graph.nodes:
        if node.op not in ("placeholder", "output") and not is_control_flow(node):
            yield from (read for read in node.all_input_nodes if read in ops.parameters)


def _dim(size: int | torch.SymInt) -> int | str:
    return size if isinstance(size, int) else str(size)


def _describe(value: Value) -> str:
    """Return dtype and shape as a comment has it: ``float32[batch, 8]``; only what fx and torch themselves name."""
    if value.dtype == OPAQUE:
        return ""
    dims = ", ".join(ascii(d)[1:-1] if isinstance(d, str) else str(d) for d in value.shape)
    return f"{value.dtype}[{dims}]"
