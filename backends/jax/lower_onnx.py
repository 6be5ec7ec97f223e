"""Lay out an ONNX model, whole or one stage of it, as a program of calls.

What becomes of constants:

1. A float initializer with a dimension is a parameter under its own name. What nodes make of it alone (a transpose) is
   computed by the stage, so that gradients reach the initializer.
2. What nodes make of other constants is computed here, once. Where it is large it is a parameter too, under the name
   of the value, else it stands in the program.
3. A constant that must be known (a shape, axes, the scales of a resize) stands in the program, whatever made it.

Left out: strings, sequences.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from heterps_compile.backends.onnx_stage.ml_attributes import Prepare, find_prepare
from heterps_compile.backends.onnx_stage.nodes import OpTable, are_read, domain_of, opset_of
from heterps_compile.backends.onnx_stage.nodes import find_unsupported as nodes_unsupported
from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.errors import BackendError, UnsupportedOpError
from heterps_compile.escape import printable, shorten
from heterps_compile.frontends.onnx_bodies import lift_initializers, subgraphs
from heterps_compile.frontends.onnx_facts import stated_defaults

from .known_values import find_known_inputs
from .program import Body, Call, Param, Program, Ref
from .table import Op, find_op, parameters_of, snake

_LITERAL_ELEMENTS = 64
_DTYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype", "softmax_precision", "precision"})


def find_unsupported(nodes: Sequence[ir.Node], opsets: Mapping[str, int]) -> list[UnsupportedNode]:
    """Return the nodes, those of subgraphs too, that the table cannot run, and why."""
    return nodes_unsupported(nodes, opsets, OpTable("jax", find_op, _attributes))


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: _plain(name, attribute) for name, attribute in node.attributes.items()}


def lower_model(
    model: ir.Model,
    index: int = 0,
    kinds: Mapping[str, str] = MappingProxyType({}),
    described: Mapping[str, str] = MappingProxyType({}),
    updates: Mapping[str, str] = MappingProxyType({}),
) -> Program:
    """Lay out a model.

    Args:
        model: The model, or a part of one, in topological order.
        index: Of the stage.
        kinds: What an initializer is, ``"weight"``, ``"buffer"`` or ``"constant"``, where the graph says so.
        described: dtype and shape of values by name, where they are known.
        updates: By the names of parameters that the model changes, those of its last outputs, their new values.

    Raises:
        UnsupportedOpError: naming the first node that the table cannot run.
        BackendError: where a shape depends on the elements of what the stage computes.
    """
    faults = find_unsupported(list(model.graph), model.graph.opset_imports)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise UnsupportedOpError(f"stage {index}: {faults[0].describe()}{more}")
    lift_initializers(model.graph)
    return _Lowering(model, index, kinds, described).program(updates)


class _Lowering:
    def __init__(self, model: ir.Model, index: int, kinds: Mapping[str, str], described: Mapping[str, str]) -> None:
        self.graph, self.index, self.kinds, self.described = model.graph, index, kinds, described
        self.opsets = model.graph.opset_imports
        self.inputs = tuple(v.name or "" for v in model.graph.inputs if not v.is_initializer())
        self.outputs = tuple(v.name or "" for v in model.graph.outputs)
        self.makers: dict[str, Call] = {}  # of what is made of constants alone
        self.folded: dict[str, Any] = {}
        self.depends_on_weight: set[str] = set()
        self.parameters: dict[str, Any] = {}

    def program(self, updates: Mapping[str, str]) -> Program:
        self.depends_on_weight.update(name for name in self.graph.initializers if self._kind(name) != "constant")
        calls = [self._call(node) for node in self.graph]
        kept = self._keep(calls, {name for name in self.outputs if self._is_run(name)})
        returned = tuple(self._argument(name, must_be_known=False) for name in self.outputs)
        own = len(returned) - len(updates)
        known = find_known_inputs(self.index, kept, self.inputs)
        held = dict.fromkeys(a.name for a in _read(kept) if isinstance(a, Param))
        held.update(dict.fromkeys(r.name for r in returned if isinstance(r, Param)))
        parameters = {name: self.parameters[name] for name in held}
        weights = frozenset(name for name in parameters if self._kind(name) == "weight")
        return Program(
            self.index, self.inputs, self.outputs[:own], tuple(kept), returned[:own], known, parameters, weights,
            self.described, dict(zip(updates, returned[own:], strict=True)),
        )  # fmt: skip

    def _keep(self, calls: Sequence[Call], needed: set[str]) -> list[Call]:
        """Return the calls that make what is needed, with their arguments; what these need is added to it."""
        kept: list[Call] = []
        for call in reversed(calls):
            if needed.isdisjoint(call.results):
                continue
            arguments = self._arguments(call)
            results = tuple(name if name in needed else "" for name in call.results)
            bodies = {}
            for name, body in call.bodies.items():
                inside = {result for result in body.results if self._is_run(result)}
                inner = tuple(self._keep(body.calls, inside))
                given = tuple(self._argument(result, must_be_known=False) for result in body.results)
                bodies[name] = Body(body.inputs, inner, given)
                needed.update(inside.difference(body.inputs, *(made.results for made in inner)))
            needed.update(a.name for a in arguments if isinstance(a, Ref))
            kept.append(replace(call, arguments=arguments, results=results, bodies=bodies))
        return kept[::-1]

    def _control(self, node: ir.Node, row: Op, names: tuple[str, ...]) -> Call:
        """Return the call for a node with subgraphs: their results still names too."""
        bodies = {}
        options = {}
        for name, attribute in node.attributes.items():
            if attribute.type is not ir.AttributeType.GRAPH:
                options[name] = _plain(name, attribute)
                continue
            graph = attribute.as_graph()
            inputs, results = (tuple(v.name or "" for v in values) for values in (graph.inputs, graph.outputs))
            bodies[name] = Body(inputs, tuple(self._call(inner) for inner in graph), results)
        if node.op_type == "Loop" and len(node.outputs) > max(len(names) - 2, 0):
            options["collects"] = len(node.outputs) - max(len(names) - 2, 0)
        made = tuple(value.name or "" if value.uses() or value.is_graph_output() else "" for value in node.outputs)
        return Call(row, names, options, made, node.name or "", bodies=bodies)

    def _prepare(self, node: ir.Node, prepare: Prepare) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Keep what a node has in its attributes as constants; give their names, and the options beside them."""
        prepared = prepare(_attributes(node), are_read(node))
        names = []
        for i, array in enumerate(prepared.arrays):
            name = f"{node.name or node.op_type}:{i}"
            while self._is_constant(name):
                name += "'"
            self.folded[name] = array
            names.append(name)
        return tuple(names), dict(prepared.options)

    def _call(self, node: ir.Node) -> Call:
        """Return the call for a node, its arguments still names."""
        names = tuple("" if value is None else value.name or "" for value in node.inputs)
        domain = domain_of(node)
        row = find_op(domain, node.op_type, opset_of(self.opsets, domain))
        if row is None:
            raise AssertionError("find_unsupported has reported it")
        if any(subgraphs(node)):
            return self._control(node, row, names)
        count = parameters_of(row.function).get("outputs")
        results = [value.name or "" if value.uses() or value.is_graph_output() else "" for value in node.outputs]
        while len(results) > 1 and not results[-1] and (count is None or count.default is not count.empty):
            results.pop()
        prepare = find_prepare(domain, node.op_type)
        if prepare is None:
            options = self._options(node, row, len(results))
        else:
            more, options = self._prepare(node, prepare)
            names += more
        key = parameters_of(row.function).get("key")  # an input may bear that name too: LinearAttention's keys
        draws = key is not None and key.kind is key.KEYWORD_ONLY
        call = Call(row, names, options, tuple(results), node.name or "", draws)
        if not call.draws and all(not name or self._is_constant(name) for name in names):
            self.makers.update(dict.fromkeys(filter(None, results), call))
            if any(name in self.depends_on_weight for name in names):
                self.depends_on_weight.update(filter(None, results))
        return call

    def _options(self, node: ir.Node, row: Op, outputs: int) -> dict[str, Any]:
        takes = parameters_of(row.function)
        options = self._stated(node, row) | {snake(n): _plain(n, attribute) for n, attribute in node.attributes.items()}
        if "outputs" in takes:
            options["outputs"] = outputs
        return {
            name: value
            for name, value in options.items()
            if name not in takes or isinstance(value, (np.ndarray, np.dtype)) or takes[name].default != value
        }

    def _stated(self, node: ir.Node, row: Op) -> dict[str, Any]:
        """Return the schema's defaults of attributes that a function has none for."""
        bare = {n for n, p in parameters_of(row.function).items() if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
        domain = domain_of(node)
        stated = stated_defaults(domain, node.op_type, opset_of(self.opsets, domain))
        return {snake(name): value for name, value in stated.items() if snake(name) in bare}

    def _kind(self, name: str) -> str:
        value = self.graph.initializers.get(name)
        if value is None or value.const_value is None:
            return "constant"
        is_weight = value.const_value.dtype.is_floating_point() and len(value.const_value.shape) > 0
        return self.kinds.get(name, "weight" if is_weight else "constant")

    def _is_constant(self, name: str) -> bool:
        return name in self.graph.initializers or name in self.folded or name in self.makers

    def _is_run(self, name: str) -> bool:
        """Say whether a call of the stage makes a value: not what is constant, unless of weights."""
        return name not in self.inputs and (not self._is_constant(name) or self._is_made_of_weights(name))

    def _is_made_of_weights(self, name: str) -> bool:
        return name in self.makers and name in self.depends_on_weight

    def _arguments(self, call: Call) -> tuple[Any, ...]:
        arguments = [self._argument(name, must_be_known=i in call.op.known) for i, name in enumerate(call.arguments)]
        while arguments and arguments[-1] is None:
            arguments.pop()
        return tuple(arguments)

    def _argument(self, name: str, *, must_be_known: bool) -> Any:
        if not name:
            return None
        if name in self.inputs or not self._is_constant(name):
            return Ref(name)
        if must_be_known:
            return _bare(self._value(name))
        if self._is_made_of_weights(name):
            return Ref(name)
        if name not in self.depends_on_weight:
            value = self._value(name)
            if value.size <= _LITERAL_ELEMENTS:
                return value
        if name not in self.parameters:
            self.parameters[name] = self._value(name)
        return Param(name)

    def _value(self, name: str) -> Any:
        """Return a constant's array; what nodes make of constants is computed once."""
        if name not in self.folded:
            if name in self.graph.initializers:
                self.folded[name] = _array(self.graph.initializers[name].const_value, name)
            else:
                self._fold(self.makers[name])
        return self.folded[name]

    def _fold(self, call: Call) -> None:
        arguments = [self._value(name) if name else None for name in call.arguments]
        for i in call.op.known:
            if i < len(arguments) and arguments[i] is not None:
                arguments[i] = _bare(arguments[i])
        try:
            with jax.enable_x64(True), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns of infinities that ONNX asks for
                made = call.op.function(*arguments, **call.options)
        except (TypeError, ValueError, IndexError, KeyError) as error:
            reason = printable(shorten(" ".join(str(error).split()), 300))
            node = printable(shorten(call.node, 80))
            raise BackendError(f"stage {self.index}: node {node!r} ({call.op.name}) fails: {reason}") from error
        results = made if isinstance(made, tuple) else (made,)
        self.folded.update((name, np.asarray(r)) for name, r in zip(call.results, results, strict=False) if name)


def _read(calls: Sequence[Call]) -> Iterator[Any]:
    """Yield the arguments of calls and what their subgraphs read and give."""
    for call in calls:
        yield from call.arguments
        for body in call.bodies.values():
            yield from _read(body.calls)
            yield from body.results


def _bare(array: Any) -> Any:
    """Return whole numbers as Python's, which read better; others as they are."""
    if array.dtype.kind not in "iub" or array.ndim > 1 or array.dtype == bool:
        return array
    return int(array) if array.ndim == 0 else tuple(int(value) for value in array)


def _array(tensor: ir.TensorProtocol | None, name: str) -> Any:
    shown = printable(shorten(name, 80))
    if tensor is None:
        raise BackendError(f"the weight {shown!r} has no data")
    try:
        array = tensor.numpy()
    except (OSError, ValueError, TypeError) as error:
        raise BackendError(f"the weight {shown!r} cannot be read: {printable(str(error))}") from error
    if array.dtype == object:
        raise BackendError(f"the constant {shown!r} is of strings, which jax does not have")
    return array


def _plain(name: str, attribute: ir.Attr) -> Any:
    """Return an attribute as Python has it: text, numbers, tuples, dtypes; float32 numbers as short as they are."""
    value = attribute.value
    if attribute.type is ir.AttributeType.TENSOR:
        return _array(attribute.as_tensor(), name)
    if attribute.type is ir.AttributeType.FLOAT:
        return _short(value)
    if attribute.type is ir.AttributeType.FLOATS:
        return tuple(_short(v) for v in value)
    if name in _DTYPE_ATTRIBUTES:
        return ir.DataType(value).numpy() if value else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)
    return value


def _short(value: float) -> float:
    return float(str(np.float32(value)))
