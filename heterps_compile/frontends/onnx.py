"""Read an ONNX model into a graph.

What becomes what:

- a node whose result depends on the inputs becomes a node; one whose result is the same in every run (a
  ``ConstantOfShape`` of an initialiser, a ``DequantizeLinear`` of a weight) does not: what it makes is a parameter of
  the nodes that read it, and every stage that needs it computes it for itself;
- floating parameters are what the exporter says that they are; where it says nothing those with at least one dimension
  are ``weight``, the running statistics of a ``BatchNormalization`` ``buffer``, all others ``constant``;
- values have shapes in numbers, at the bindings; only the inputs keep their symbols;
- results that nobody reads are left out of their node's outputs, nodes that reach no output are left out altogether.

Left out: gradients; what the ops compute (ONNX Runtime runs the original).
"""

import gc
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from heterps_compile.frontends.open_batch.known_values import KnownValues
from heterps_compile.frontends.open_batch.open_model import OpenedModel, open_batch
from heterps_compile.ir.graph import ITEM_BITS, ONNX, OPAQUE, Graph, Node, OpenedBatch, OpKind, Parameter, Value
from heterps_compile.units import counted

from .onnx_bodies import subgraphs
from .onnx_branches import fold_branches
from .onnx_dims import BoundInputs, bind_inputs
from .onnx_files import load_model
from .onnx_free_dims import choose_numbers
from .onnx_given import arrays_of
from .onnx_inputs import fit_array
from .onnx_merged import is_statistic, stated_kind
from .onnx_names import module_path, op_name, quote_some
from .onnx_ops import Operation, classify
from .onnx_recorded import training_notes
from .onnx_shapes import DTYPES, Inference, find_values, infer, made_constants_bytes, refuse_large_constants
from .onnx_structure import Roles, find_roles, is_random, normalize
from .onnx_trips import Trips, refuse_long_runs

_KEEPS_STORAGE = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"})
_FLOATING = ("float", "bfloat")


@dataclass(frozen=True, slots=True)
class OnnxSource:
    """What an ONNX graph keeps of the model it was read from.

    Attributes:
        model: The model, normalised; ``Node.origin`` counts its nodes. Not to be changed.
        path: Where it was read from, or None.
        notes: What a user should know: where shapes come from, what was left out.
        training_notes: What a user should know who trains it.
        given: Arrays that the user gave, by input; verification takes them.
    """

    model: ir.Model
    path: Path | None
    notes: tuple[str, ...]
    training_notes: tuple[str, ...] = ()
    given: Mapping[str, NDArray[Any]] = field(default_factory=lambda: MappingProxyType({}))


def import_onnx(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    *,
    batch: int | None = None,
    shapes: Mapping[str, int] = MappingProxyType({}),
    given: Mapping[str, Any] | tuple[Any, ...] = (),
    name: str | None = None,
) -> Graph:
    """Read an ONNX model; near-linear in nodes and edges, weights are not read.

    Args:
        model: Path of a file, or a model in memory, which is not changed but shares its weights with the graph.
        batch: The number of the batch dimension; where the model fixes it, it is opened, if no node mixes samples.
        shapes: Numbers of other dynamic dimensions by name; those left out are chosen (:mod:`.onnx_free_dims`).
        given: Values of inputs by name, arrays or numbers; their shapes give numbers to dimensions too.
        name: Of the graph; by default the file's, or the model's own.

    Raises:
        InputError: an unreadable model, a dimension for which no number is found, a value that fits no input, or a
            batch that a node fixes.
        UnknownNameError: a dimension that the model does not have.
        UnsupportedOpError: an op or domain that neither ONNX nor ONNX Runtime knows.
        GraphError: a cycle, an undefined value, a value made twice, a shape that cannot be found, a number over the
            budget.
    """
    with _no_garbage_collection():
        return _import(model, batch, shapes, given, name)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause the collector: reading makes objects by the million, all of which live on."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _import(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    batch: int | None,
    shapes: Mapping[str, int],
    given: Mapping[str, Any] | tuple[Any, ...],
    name: str | None,
) -> Graph:
    source, path, rewritten = load_model(model)
    notes = [*rewritten, *normalize(source), *fold_branches(source)]
    opened = open_batch(source, batch)
    if opened is not None:
        notes.append(opened.note)
    roles = find_roles(source.graph)
    values = arrays_of(given, source.graph.inputs)
    known = {name: array.shape for name, array in values.items() if array.ndim}
    bound, ended = choose_numbers(source, bind_inputs(source.graph.inputs, batch, shapes, known), values, path)
    notes += ended
    values = {name: fit_array(array, bound.numbers(name)) for name, array in values.items()}
    inputs = {
        value.name or "": Value(value.name or "", DTYPES[value.dtype.value], bound.shapes[value.name or ""])
        for value in source.graph.inputs
        if value.dtype is not None
    }
    numbers = {name: Value(name, value.dtype, bound.numbers(name)) for name, value in inputs.items()}
    inference = infer(source, {name: bound.numbers(name) for name in inputs}, values)
    made_bytes = made_constants_bytes(roles.constants, inference)
    refuse_large_constants(made_bytes)
    trips = Trips(KnownValues(source, roles, inference.values))
    refuse_long_runs(trips)
    made, shape_notes = find_values(
        source,
        _wanted(source.graph, roles),
        inference,
        numbers,
        bound.bindings,
        given=values,
        infer_again=trips.known.type_of,
    )
    scratch_bytes = _scratch_bytes(source.graph, roles.constants, made_bytes)
    reader = _Reader(trips, inference, made | numbers, bound.bindings, scratch_bytes)
    nodes = tuple(reader.node(origin, node) for origin, node in roles.computed)
    parameters = reader.parameters(source.graph)
    constants = {value.name for value in roles.constants}
    return Graph(
        name=name or (path.stem if path is not None else source.graph.name) or "model",
        nodes=nodes,
        inputs=tuple(inputs),
        outputs=tuple(value.name or "" for value in source.graph.outputs),
        values=inputs | {name: value for name, value in made.items() if name not in constants},
        parameters=parameters,
        bindings=bound.bindings,
        batch_symbol=bound.batch_symbol,
        batch=bound.batch,
        family=ONNX,
        opened=None if opened is None else _at_fixed_batch(opened, bound, values),
        source=OnnxSource(
            source, path, (*notes, *_role_notes(roles), *shape_notes, *reader.notes()), training_notes(source), values
        ),
    )


def _at_fixed_batch(opened: OpenedModel, bound: BoundInputs, given: Mapping[str, NDArray[Any]]) -> OpenedBatch:
    """Return how the batch was opened, with the model as it was; that is read when it is needed."""
    others = {name: number for name, number in bound.bindings.items() if name != bound.batch_symbol}
    kept = {name: value for name, value in given.items() if name not in opened.axes}
    return OpenedBatch(opened.fixed, opened.axes, lambda: import_onnx(opened.original, shapes=others, given=kept))


def _scratch_bytes(
    graph: ir.Graph, constants: frozenset[ir.Value], made_bytes: Mapping[ir.Value, int]
) -> dict[ir.Value, int]:
    """Return, for every constant that a node makes, the bytes of the largest array made on the way to it; O(nodes)."""
    found: dict[ir.Value, int] = {}
    for node in graph:
        if made_bytes and any(out in constants for out in node.outputs):
            read = [value for value in node.inputs if value is not None]
            most = max((max(found.get(value, 0), made_bytes.get(value, 0)) for value in read), default=0)
            found.update(dict.fromkeys(node.outputs, most))
    return found


def _wanted(graph: ir.Graph, roles: Roles) -> Iterable[ir.Value]:
    """Return the values that a graph describes: what is read or returned, and was made by a node."""
    read = dict.fromkeys(value for values in roles.reads.values() for value in values)
    return (value for value in dict.fromkeys((*read, *graph.outputs)) if value.producer() is not None)


def _role_notes(roles: Roles) -> Iterable[str]:
    for nodes, what in (
        (roles.dead, "left out, since no output needs them"),
        (roles.random, "drawn by chance, so that no two runs agree"),
    ):
        if nodes:
            yield f"{what}: {counted(len(nodes), 'node')} ({quote_some(node.name or '' for node in nodes)})"


class _Reader:
    """Turns nodes into nodes, given what they read and the values' shapes."""

    def __init__(
        self,
        trips: Trips,
        inference: Inference,
        values: Mapping[str, Value],
        bindings: Mapping[str, int],
        scratch_bytes: Mapping[ir.Value, int],
    ) -> None:
        self._scratch_bytes = scratch_bytes
        self._of_unknown_length: list[ir.Node] = []
        self._partly_counted: list[ir.Node] = []
        self._roles = roles = trips.known.roles
        self._inference = inference
        self._trips = trips
        self._values = values
        self._bindings = bindings
        self._read = {value for values in roles.reads.values() for value in values}
        self._statistics: set[ir.Value] = set()
        self._first_in: dict[str, str] = {}  # by the place of external data

    def notes(self) -> Iterable[str]:
        """Tell what the FLOPs of the nodes read so far leave out."""
        for nodes, what in (
            (self._of_unknown_length, "counted once, since nobody knows how often it runs: the body"),
            (self._partly_counted, "not counted where shapes are unknown: FLOPs in the body"),
        ):
            if nodes:
                yield f"{what} of {counted(len(nodes), 'node')} ({quote_some(node.name or '' for node in nodes)})"

    def node(self, origin: int, node: ir.Node) -> Node:
        """Return the node of the graph that stands for a node of the model."""
        kind, flops = classify(self._operation(node))
        if kind is OpKind.CONTROL:
            flops += self._body_flops(origin, node)
        if node.op_type == "BatchNormalization":
            self._statistics.update(v for place, v in enumerate(node.inputs) if v and is_statistic(node, place))
        return Node(
            name=node.name or "",
            op=op_name(node),
            kind=kind,
            inputs=tuple(value.name or "" for value in self._roles.reads[node]),
            outputs=tuple(out.name or "" for out in node.outputs if out in self._read or out.is_graph_output()),
            flops=flops,
            origin=origin,
            module_path=module_path(node),
            scratch_bytes=max((self._scratch_bytes.get(value, 0) for value in self._roles.reads[node]), default=0),
            draws=is_random(node),
        )

    def _operation(self, node: ir.Node) -> Operation:
        constants = self._roles.constants
        return Operation(
            node,
            [self._shape(value) for value in node.inputs],
            [self._shape(value) for value in node.outputs],
            frozenset(i for i, value in enumerate(node.inputs) if value in constants),
            frozenset(i for i, value in enumerate(node.inputs) if value is not None and self._is_floating(value)),
        )

    def _shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        if value is None:
            return None
        if value.const_value is not None:
            return tuple(value.const_value.shape.numpy())
        found = self._values.get(value.name or "")
        if found is None:
            partial = self._inference.values.get(value.name or "")
            found = None if partial is None else partial.value(value.name or "")
        return None if found is None else tuple(dim for dim in found.shape if isinstance(dim, int))

    def _is_floating(self, value: ir.Value) -> bool:
        if value.const_value is not None:
            return value.const_value.dtype.is_floating_point()
        found = self._values.get(value.name or "")
        return found is not None and found.dtype.startswith(_FLOATING)

    def _body_flops(self, origin: int, node: ir.Node) -> int:
        """Count what the subgraphs of a node cost: the dearest branch, or the body times the trips."""
        uncounted: list[ir.Node] = []
        costs = [self._graph_flops(body, uncounted) for body in self._inference.bodies.get(origin, ())]
        trips = 1 if node.op_type == "If" else self._trips.of(node)
        if trips is None:
            self._of_unknown_length.append(node)
        if uncounted:
            self._partly_counted.append(node)
        return max(costs, default=0) * (1 if trips is None else int(trips))

    def _graph_flops(self, body: ir.Graph, uncounted: list[ir.Node]) -> int:
        total = 0
        for node in body:
            shapes = [None if value is None else self._inner_shape(value) for value in node.inputs]
            made = [self._inner_shape(value) for value in node.outputs]
            read = [shape for value, shape in zip(node.inputs, shapes, strict=True) if value is not None]
            inner = [self._graph_flops(held, uncounted) for held in subgraphs(node)]
            if None in read or None in made:
                uncounted.append(node)
            else:
                total += classify(Operation(node, shapes, made))[1] + max(inner, default=0)
        return total

    def _inner_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return a shape inside a subgraph, as inference left it there; what is captured has its shape outside."""
        if value.producer() is None and not value.is_graph_input() and not value.is_initializer():
            return self._shape(value)
        if value.shape is None:
            return None
        dims = [dim if isinstance(dim, int) else self._bindings.get(dim.value or "") for dim in value.shape]
        known = tuple(dim for dim in dims if dim is not None)
        return known if len(known) == len(dims) else None

    def parameters(self, graph: ir.Graph) -> dict[str, Parameter]:
        """Return every parameter that a node reads or the model returns, in order of first use."""
        read = [value for values in self._roles.reads.values() for value in values]
        used = dict.fromkeys(value for value in (*read, *graph.outputs) if value in self._roles.constants)
        return {value.name or "": self._parameter(value) for value in used}

    def _parameter(self, value: ir.Value) -> Parameter:
        name = value.name or ""
        tensor = value.const_value
        if tensor is not None and value.is_initializer():
            dtype, shape, size_bytes = DTYPES[tensor.dtype.value], tuple(tensor.shape.numpy()), tensor.nbytes
        else:
            made = self._values[name]
            dtype, shape = made.dtype, tuple(dim for dim in made.shape if isinstance(dim, int))
            size_bytes = 0 if dtype == OPAQUE else (prod(shape) * ITEM_BITS[dtype] + 7) // 8
        return Parameter(name, dtype, shape, self._storage(value), size_bytes, self._kind(value, dtype, shape))

    def _kind(self, value: ir.Value, dtype: str, shape: tuple[int, ...]) -> str:
        if not dtype.startswith(_FLOATING):
            return "constant"
        if value in self._statistics:
            return "buffer"
        stated = stated_kind(value)
        if stated is not None:
            return stated
        return "weight" if shape else "constant"

    def _storage(self, value: ir.Value) -> str:
        """Name the array behind a constant: through what only reshapes it, and as the first of external data."""
        maker = value.producer()
        while (
            maker is not None and maker.domain == "" and maker.op_type in _KEEPS_STORAGE and maker.inputs[0] is not None
        ):
            value = maker.inputs[0]
            maker = value.producer()
        name, tensor = value.name or "", value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            place = f"{os.path.normpath(tensor.location)}@{tensor.offset or 0}+{tensor.nbytes}"
            return self._first_in.setdefault(place, name)
        return name
