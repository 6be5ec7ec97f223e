"""A stage of an ONNX model as a graph of PyTorch's own ops, which is what can be written as source.

The steps are traced once with ``torch.export``, on tensors of the right shapes; parameters enter as arguments, so that
no name of the model comes near it. Dimensions that vary in the model stay open where the ops allow it; what is written
is right for any size of those, and for the number the model was read with of the others.

A branch on a value is written as an ``if``, a loop that a value ends as a ``while``.

Left out: ops whose result has a size that depends on values (``NonMaxSuppression``); such a stage runs in memory alone.
"""

import operator
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable
from heterps_compile.frontends.torch_clean import erase_checks
from heterps_compile.frontends.torch_marks import mark_of, mark_traced, marks_kept
from heterps_compile.frontends.torch_program import quiet_tracing
from heterps_compile.frontends.torch_reasons import whole_reason
from heterps_compile.ir.graph import Graph, Value

from .calls import can_write
from .lower import OpGraph
from .onnx_ops.dtypes import torch_type
from .onnx_ops.traced_recurrence import LAYERS
from .onnx_stage import OnnxStage, Step
from .open_dims import Multiple, OpenShape, open_shapes

_MARK = "heterps_compile_step"
_TIED = "tied"
_NUMBERS = (operator.mul, operator.add, torch.ops.aten.sym_size.int)
_SHAPES = (torch.ops.aten.empty.memory_format, torch.ops.aten.expand.default)
_SYMBOL = re.compile(r"\b[a-z]+\d+\b")


class _Body(nn.Module):
    """The steps of a stage, without its parameters."""

    stage: OnnxStage
    dims: list[tuple[Multiple | None, ...]]
    naming: Callable[[Step], AbstractContextManager[Any]]

    def __init__(
        self,
        stage: OnnxStage,
        shapes: Mapping[str, OpenShape],
        naming: Callable[[Step], AbstractContextManager[Any]],
    ) -> None:
        super().__init__()
        dims = [shapes[name].dims for name in stage.inputs]
        self.__dict__.update(stage=stage, dims=dims, naming=naming)  # a submodule's names would be the model's

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        count = len(self.stage.parameter_names)
        return self.stage.run_on(values[:count], self._tied(values[count:]), self.naming)

    def _tied(self, values: tuple[Tensor, ...]) -> list[Tensor]:
        """Write dimensions that are multiples of another input's as such: to find that out takes torch.export long."""
        sizes = {
            dim.symbol: value.shape[axis]
            for value, dims in zip(reversed(values), reversed(self.dims), strict=True)
            for axis, dim in enumerate(dims)
            if dim is not None and dim == Multiple(dim.symbol)
        }
        tied = []
        for value, dims in zip(values, self.dims, strict=True):
            shape: list[Any] = list(value.shape)
            for axis, dim in enumerate(dims):
                if dim is not None and dim.times > 1 and dim.symbol in sizes:
                    shape[axis] = sizes[dim.symbol] * dim.times
            if all(one is other for one, other in zip(shape, value.shape, strict=True)):
                tied.append(value)
                continue
            with mark_traced(_MARK, _TIED):
                tied.append(value.reshape(shape))
        return tied


def lower_onnx_stage(graph: Graph, stage: OnnxStage) -> tuple[Graph, OpGraph]:
    """Return a stage's nodes as ops that can be written, and the graph with the shapes found while tracing.

    Raises:
        BackendError: naming stage, node and op of what cannot be written.
    """
    marks: dict[str, Step] = {}
    shapes = open_shapes(graph, stage.inputs)
    try:
        program = _trace(graph, stage, shapes, marks)
    except BackendError:
        if 1 not in graph.bindings.values():
            raise
        shapes = open_shapes(graph, stage.inputs, ones_stay=True)
        program = _trace(graph, stage, shapes, marks)
    reader = _Reader(graph, stage, program, shapes, marks)
    ops = reader.read()
    for node in ops.graph.nodes:
        if not can_write(node):
            raise BackendError(
                f"stage {stage.index} cannot be written: {reader.origin(node)} became {printable(str(node.target))}, "
                f"which is no op of PyTorch's own; the stage runs in memory"
            )
    return replace(graph, values={**graph.values, **reader.values}), ops


def _trace(graph: Graph, stage: OnnxStage, shapes: Mapping[str, OpenShape], marks: dict[str, Step]) -> Any:
    held = [table[key].detach() for table, key in stage._slots]
    examples = [torch.zeros(shapes[name].sizes, dtype=torch_type(graph.values[name].dtype)) for name in stage.inputs]
    # names of the model are data, and torch.export wants identifiers
    symbols = {symbol: Dim(f"open{i}") for i, symbol in enumerate(graph.bindings)}

    def naming(step: Step) -> AbstractContextManager[Any]:
        mark = str(len(marks))
        marks[mark] = step
        return mark_traced(_MARK, mark)

    try:
        dims = [_open(shapes[name], symbols) for name in stage.inputs]
        return _export(_Body(stage, shapes, naming), (*held, *examples), dims)
    except BackendError:
        if not graph.bindings:
            raise
        # an op narrows a dimension down: let torch.export find how far, which takes it longer
        dims = [_open(shapes[name], {}) for name in stage.inputs]
        free = {name: OpenShape(shape.sizes, (None,) * len(shape.dims)) for name, shape in shapes.items()}
        return _export(_Body(stage, free, naming), (*held, *examples), dims)


def _export(body: _Body, values: tuple[Tensor, ...], dims: list[Any]) -> Any:
    stage = body.stage
    shapes = (tuple([None] * len(stage.parameter_names) + dims),)
    try:
        with quiet_tracing(), marks_kept():
            return torch.export.export(body, values, dynamic_shapes=shapes, strict=False)
    except BackendError as error:
        reason = printable(str(error)).removeprefix(f"stage {stage.index}: ")
        raise BackendError(f"stage {stage.index} cannot be written as source: {reason}; it runs in memory") from error
    except Exception as error:
        found = stage.reader_of_elements
        sizes = f"; {_shown(found[0])} takes sizes from elements of {printable(found[1])!r}" if found else ""
        raise BackendError(
            f"stage {stage.index} cannot be written as source: torch.export cannot trace it: {whole_reason(error)}"
            f"{sizes}; it runs in memory"
        ) from error


def _shown(step: Step) -> str:
    return f"node {printable(step.node)!r} ({printable(step.op)})"


def _open(shape: OpenShape, symbols: Mapping[str, Any]) -> dict[int, Any] | None:
    """Return what ``torch.export`` is told of a tensor's dimensions."""
    told: dict[int, Any] = {}
    for axis, dim in enumerate(shape.dims):
        if dim is not None:
            base = symbols.get(dim.symbol, Dim.AUTO)
            told[axis] = base if base is Dim.AUTO or dim == Multiple(dim.symbol) else dim.times * base + dim.plus
    return told or None


def _body_of(module: Any, node: fx.Node) -> Any:
    """Return the graph module that a node of an exported program names, or None where it names a tensor."""
    found = getattr(module, str(node.target), None)
    return found if isinstance(found, fx.GraphModule) else None


def _put_back_layers(made: fx.Graph) -> None:
    for node in made.nodes:
        node.target = LAYERS.get(node.target, node.target)


class _Reader:
    """Copies an exported program's graph into one of our own, nodes named after the model's values."""

    def __init__(
        self,
        graph: Graph,
        stage: OnnxStage,
        program: Any,
        shapes: Mapping[str, OpenShape],
        marks: Mapping[str, Step],
    ) -> None:
        self.graph, self.stage, self.program, self.shapes, self.marks = graph, stage, program, shapes, marks
        self.values: dict[str, Value] = {}
        self._made = fx.Graph()
        self._steps: dict[fx.Node, Step] = {}
        self._symbols: dict[str, str] = {}
        self._paths = {node.name: node.module_path for node in graph.nodes}

    def read(self) -> OpGraph:
        env: dict[fx.Node, fx.Node] = {}
        nodes = list(self.program.graph.nodes)
        given = [node for node in nodes if node.op == "placeholder"]
        lifted = len(given) - len(self.stage.parameter_names) - len(self.stage.inputs)
        bodies = {node: _body_of(self.program.graph_module, node) for node in nodes if node.op == "get_attr"}
        if lifted or None in bodies.values():
            raise BackendError(f"stage {self.stage.index} cannot be written: an op of it makes a constant of its own")
        for node, name in zip(given[len(self.stage.parameter_names) :], self.stage.inputs, strict=True):
            self._name_symbols(node, name)
        last = self._last_of_steps(nodes)
        for node in nodes:
            if node.op == "placeholder":
                env[node] = self._made.placeholder(f"argument_{len(env)}")
                env[node].meta = {"name": "", "val": node.meta.get("val"), "path": ""}
            elif node.op == "output":
                results = node.args[0]
                self._made.output(tuple(env[r] if isinstance(r, fx.Node) else r for r in results))
            elif node.op == "get_attr":
                env[node] = self._made.node_copy(node)
                env[node].meta = {"name": node.name, "val": None, "path": "", "body": self._copy_body(bodies[node])}
            elif self._mark(node) == _TIED and isinstance(node.meta.get("val"), Tensor):
                source = node.args[0]
                assert isinstance(source, fx.Node)  # noqa: S101 - our own reshape; this tells the type checker
                env[node] = env[source]
                source.meta["val"] = node.meta["val"]
            else:
                made = self._made.node_copy(node, env.__getitem__)
                step = self._step(node)
                made.meta = {
                    "name": last.get(node) or self._own_name(node),
                    "val": node.meta.get("val"),
                    "path": "" if step is None else self._paths.get(step.node, ""),
                }
                if step is not None:
                    self._steps[made] = step
                env[node] = made
        placeholders = [env[node] for node in given]
        count = len(self.stage.parameter_names)
        parameters = dict(zip(placeholders[:count], self.stage.parameter_names, strict=True))
        for node, name in [*zip(given[count:], self.stage.inputs, strict=True), *last.items()]:
            self._describe(node, name)
        erase_checks(self._made)
        _put_back_layers(self._made)
        for node in reversed(list(self._made.nodes)):
            if not node.users and node.target in (*_NUMBERS, *_SHAPES):
                self._made.erase_node(node)
        return OpGraph(self._made, parameters, tuple(placeholders[count:]))

    def _copy_body(self, module: Any) -> fx.Graph:
        """Copy a graph that control flow runs; its nodes make no value of the model."""
        made = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        for node in module.graph.nodes:
            env[node] = made.node_copy(node, env.__getitem__)
            env[node].meta = {"name": self._own_name(node), "val": node.meta.get("val"), "path": ""}
            if node.op == "get_attr":
                env[node].meta["body"] = self._copy_body(_body_of(module, node))
        erase_checks(made)
        _put_back_layers(made)
        return made

    def origin(self, node: fx.Node) -> str:
        """Return the model's node that a node came from, for a message."""
        step = self._steps.get(node)
        return "a node" if step is None else _shown(step)

    def _mark(self, node: fx.Node) -> str:
        return mark_of(node, _MARK) or ""

    def _step(self, node: fx.Node) -> Step | None:
        return self.marks.get(self._mark(node))

    def _last_of_steps(self, nodes: list[fx.Node]) -> dict[fx.Node, str]:
        """Give, for the last tensor that a step of one output makes, the name of that output."""
        found: dict[str, fx.Node] = {}
        for node in nodes:
            step = self._step(node)
            if step is not None and len(step.names) == 1 and isinstance(node.meta.get("val"), Tensor):
                found[step.names[0]] = node
        return {node: name for name, node in found.items()}

    def _own_name(self, node: fx.Node) -> str:
        """Return a node that makes no value of the model a name that none of them has."""
        name = node.name
        while name in self.graph.values or name in self.values:
            name += " "  # no name of a variable ends so
        if isinstance(node.meta.get("val"), Tensor):
            self._describe(node, name)
        return name

    def _name_symbols(self, node: fx.Node, name: str) -> None:
        for size, dim in zip(node.meta["val"].shape, self.shapes[name].dims, strict=True):
            if isinstance(size, torch.SymInt) and dim is not None and dim == Multiple(dim.symbol) and dim.symbol:
                self._symbols.setdefault(str(size), dim.symbol)

    def _describe(self, node: fx.Node, name: str) -> None:
        fake = node.meta["val"]
        dims = tuple(d if isinstance(d, int) else self._spell(str(d)) for d in fake.shape)
        self.values[name] = Value(name, str(fake.dtype).removeprefix("torch."), dims)

    def _spell(self, dim: str) -> str:
        """Write a dimension with the model's symbols in place of those of ``torch.export``."""
        return _SYMBOL.sub(lambda found: self._symbols.get(found.group(), found.group()), dim)
