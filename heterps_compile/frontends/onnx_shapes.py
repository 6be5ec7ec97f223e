"""Find the data type and shape of the values in an ONNX model.

Three sources, in this order: ONNX's own shape inference on a copy whose inputs have numbers; what the model
itself says; for what is still unknown (contrib ops, shapes that depend on data) one run of the model on generated
inputs, with those values exposed.

Left out: shapes that change from run to run (the run shows one of them, and a note says so).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from types import MappingProxyType
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from heterps_compile.errors import GraphError
from heterps_compile.escape import one_line
from heterps_compile.host_memory import available_bytes
from heterps_compile.ir.graph import ITEM_BITS, OPAQUE, Dim, Value
from heterps_compile.units import counted, format_bytes

from .onnx_budget import BUDGET, Budget, over_budget
from .onnx_inputs import drawn_values, generate_inputs
from .onnx_names import describe, quote, quote_some
from .onnx_session import ORT_ERRORS, open_session, reason, skeleton
from .onnx_structure import quiet

DTYPES: Mapping[int, str] = {
    dtype.value: "string" if dtype is ir.DataType.STRING else dtype.numpy().name
    for dtype in ir.DataType
    if dtype is not ir.DataType.UNDEFINED
}
"""Names of ONNX's data types by their number; those of :data:`heterps_compile.ir.graph.ITEM_BITS`."""

_LONGEST_VECTOR = 2**18
_MOST_GIVEN = 64  # elements of an array that shapes may depend on
_WHOLE = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.INT32, onnx.TensorProto.INT64)  # what may be a shape

PartialShape = tuple[int | str | None, ...]
"""A shape as far as it is known: a symbol, or None, stands for what is not."""


@dataclass(frozen=True, slots=True)
class Partial:
    """What is known of a value: None where the dtype, or the number of dimensions, is not."""

    dtype: str | None = None
    shape: PartialShape | None = None

    def value(self, name: str) -> Value | None:
        """Return the value, or None where anything about it is unknown."""
        if self.dtype == OPAQUE:
            return Value(name, OPAQUE, ())
        if self.dtype is None or self.shape is None:
            return None
        shape: tuple[Dim, ...] = tuple(dim for dim in self.shape if isinstance(dim, int))
        return Value(name, self.dtype, shape) if len(shape) == len(self.shape) else None


@dataclass(frozen=True, slots=True)
class Inference:
    """What shape inference found.

    Attributes:
        values: By name, of the main graph.
        bodies: For the index of every node that holds subgraphs, these, with the shapes inside them.
        is_partial: Whether shapes computed from long vectors were left unknown.
    """

    values: Mapping[str, Partial]
    bodies: Mapping[int, tuple[ir.Graph, ...]]
    is_partial: bool = False


def infer(
    model: ir.Model, bound: Mapping[str, Sequence[int]], given: Mapping[str, NDArray[Any]] = MappingProxyType({})
) -> Inference:
    """Run ONNX's shape inference; O(nodes).

    Args:
        model: A normalised model; it is not changed.
        bound: Shapes in numbers, by input; the others keep their symbols.
        given: Arrays that the user gave, by input; shapes are computed from small ones of integers.
    """
    try:
        proto, large = skeleton(model)
    except ir.serde.SerdeError as e:
        raise GraphError(f"the model cannot be written as ONNX again: {e.__cause__ or e}; export it again") from e
    graph: Any = proto.graph
    for value in graph.input:
        if value.name in bound:
            del value.type.tensor_type.shape.dim[:]
            value.type.tensor_type.shape.dim.extend(
                onnx.TensorShapeProto.Dimension(dim_value=dim) for dim in bound[value.name]
            )
    known = {name: a for name, a in given.items() if a.dtype.kind in "iu" and a.size <= _MOST_GIVEN}
    if known:
        read = [value for value in graph.input if value.name not in known]
        del graph.input[:]
        graph.input.extend(read)
        graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in known.items())
    for value in graph.output:
        value.ClearField("type")  # else inference is bound to what the model claims
    del graph.value_info[:]
    for name, tensor in large.items():
        graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.dtype.value, tensor.shape.numpy()))
    inferred, is_partial = _infer_shapes(proto)
    found = {t.name: Partial(DTYPES.get(t.data_type), tuple(t.dims)) for t in inferred.initializer}
    found |= {v.name: read_type(v.type) for v in (*inferred.input, *inferred.value_info, *inferred.output)}
    with quiet():  # what a body captures is not found in it
        bodies = {
            i: tuple(
                ir.serde.deserialize_graph(body)
                for attribute in node.attribute
                for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)
            )
            for i, node in enumerate(inferred.node)
            if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        }
    return Inference(found, bodies, is_partial)


def _infer_shapes(proto: onnx.ModelProto) -> tuple[Any, bool]:
    """Infer shapes, those computed from shapes too: for these ONNX keeps an object for every element of any vector.

    Where a vector is long that takes all memory, and what is computed from shapes is left unknown; returns whether.
    """
    try:
        plain: Any = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=False)
        is_long = _propagates(plain.graph) and _longest_vector(plain.graph, {}) > _LONGEST_VECTOR
        if is_long or not _propagates(plain.graph):
            return plain.graph, is_long
        full: Any = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
        return full.graph, False
    except onnx.shape_inference.InferenceError as e:
        raise GraphError(f"shapes cannot be inferred: {one_line(str(e))}; export the model again") from e
    except MemoryError as e:
        raise GraphError(
            "shapes cannot be inferred: an op makes a constant larger than the memory that is free "
            f"({format_bytes(available_bytes())}), such as a Range of very many numbers; export it with smaller ones"
        ) from e


def _propagates(graph: Any) -> bool:
    """Check whether inference of values finds more than inference of shapes: whether a node has a rule for it."""
    inner = (body for node in graph.node for each in node.attribute for body in (each.g, *each.graphs))
    return any(node.op_type in _keep_values() for node in graph.node) or any(map(_propagates, inner))


def _longest_vector(graph: Any, lengths: dict[str, int]) -> int:
    """Bound the length of the vectors that inference of values would keep, in a graph and its subgraphs.

    Args:
        graph: With the shapes that are known without values.
        lengths: By name, of what the graph captures; what the graph makes is added.
    """
    known: dict[str, int] = {}
    longest = 0
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        dims = tensor.shape.dim
        if tensor.elem_type not in _WHOLE or (tensor.HasField("shape") and len(dims) != 1):
            known[value.name] = 1
        elif len(dims) == 1 and dims[0].HasField("dim_value"):
            known[value.name] = dims[0].dim_value
        if len(dims) == 1:
            longest = max(longest, dims[0].dim_value)
    lengths |= known
    lengths |= {t.name: t.dims[0] for t in graph.initializer if len(t.dims) == 1 and t.data_type in _WHOLE}
    for node in graph.node:
        if node.op_type in _keep_values():
            read = [lengths.get(name, 1) for name in node.input]
            most = sum(read) if node.op_type == "Concat" else max(read, default=1)  # the others make no vector longer
            lengths |= {name: most for name in node.output if name not in known}
            longest = max(longest, *(lengths[name] for name in node.output))
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                longest = max(longest, _longest_vector(body, lengths))
    return longest


@cache
def _keep_values() -> frozenset[str]:
    """Return the ops of whose results ONNX's inference keeps the values."""
    schemas = onnx.defs.get_all_schemas_with_history()
    return frozenset(schema.name for schema in schemas if schema.has_data_propagation_function)


def made_constants_bytes(constants: Iterable[ir.Value], inference: Inference) -> dict[ir.Value, int]:
    """Return the bytes of the constants that nodes make, where inference knows their shapes."""
    sizes: dict[ir.Value, int] = {}
    for value in constants:
        found = inference.values.get(value.name or "", Partial()).value(value.name or "")
        if value.producer() is not None and found is not None and found.dtype != OPAQUE:
            sizes[value] = size_bytes(found)
    return sizes


def size_bytes(value: Value) -> int:
    """Return the bytes of a value with a shape in numbers; 0 for what is no tensor."""
    if value.dtype == OPAQUE:
        return 0
    return prod(dim for dim in value.shape if isinstance(dim, int)) * ITEM_BITS[value.dtype] // 8


def refuse_large_constants(sizes: Mapping[ir.Value, int], budget: Budget = BUDGET) -> None:
    """Stop where nodes make constants that do not fit the memory that is free, before anybody makes them.

    Raises:
        GraphError: naming the largest, with its size.
    """
    largest = max(sizes, key=sizes.__getitem__, default=None)
    if largest is None or sizes[largest] <= min(free := available_bytes(), budget.constant_bytes):
        return
    maker = largest.producer()
    made_by = describe(maker) if maker is not None else ""
    if sizes[largest] <= free:
        name = f"the size of the constant {quote(largest.name)}, which {made_by} makes,"
        most, fix = format_bytes(budget.constant_bytes), "export it as an initializer with external data"
        raise over_budget(name, format_bytes(sizes[largest]), most, fix)
    raise GraphError(
        f"{made_by} makes a constant of {format_bytes(sizes[largest])}, {quote(largest.name)}, and "
        f"{format_bytes(free)} of memory are free; export the model with a smaller one"
    )


def read_type(proto: Any) -> Partial:
    """Return what ONNX's own form of a type says."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return Partial()
    if kind != "tensor_type":
        return Partial(OPAQUE, ())
    tensor = proto.tensor_type
    shape: PartialShape | None = None
    if tensor.HasField("shape"):
        shape = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim)
    return Partial(DTYPES.get(tensor.elem_type), shape)


def declared(value: ir.Value, bindings: Mapping[str, int]) -> Partial:
    """Return what the model itself says of a value, with numbers in place of the symbols that have one."""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return Partial(OPAQUE, ())
    shape: PartialShape | None = None
    if value.shape is not None:
        dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        shape = tuple(bindings.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)
    return Partial(None if value.dtype is None else DTYPES.get(value.dtype.value), shape)


def merge(first: Partial, second: Partial) -> Partial:
    """Return what either knows; where both do, what the first says."""
    dtype = first.dtype or second.dtype
    if first.shape is None or second.shape is None or len(first.shape) != len(second.shape):
        return Partial(dtype, second.shape if first.shape is None else first.shape)
    pairs = zip(first.shape, second.shape, strict=True)
    return Partial(dtype, tuple(a if isinstance(a, int) or not isinstance(b, int) else b for a, b in pairs))


def refuse_long_vector(value: ir.Value, found: Value, budget: Budget = BUDGET) -> None:
    """Refuse a vector longer than the budget allows.

    Raises:
        GraphError: naming it and its size.
    """
    maker = value.producer()
    if maker is not None and len(found.shape) == 1 and size_bytes(found) > budget.vector_bytes:
        name = f"the size of the vector {quote(value.name)}, which {describe(maker)} makes,"
        fix = "export the model with a smaller one"
        raise over_budget(name, format_bytes(size_bytes(found)), format_bytes(budget.vector_bytes), fix)


def find_values(
    model: ir.Model,
    wanted: Iterable[ir.Value],
    inference: Inference,
    inputs: Mapping[str, Value],
    bindings: Mapping[str, int],
    *,
    given: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    infer_again: Callable[[ir.Value], Partial],
    budget: Budget = BUDGET,
) -> tuple[dict[str, Value], list[str]]:
    """Return dtype and shape, in numbers, of the wanted values, and notes on what only a run could show.

    Args:
        model: A normalised model.
        wanted: Values that nodes make.
        inference: On the model with its inputs bound.
        inputs: Of the model, in numbers.
        bindings: The number of every symbol.
        given: Arrays that the user gave, by input.
        infer_again: Finds more of a value, where inference is partial; of those before it first.
        budget: Of the bytes of such a vector.

    Raises:
        GraphError: where a shape cannot be found, naming value and op, and why the run failed; a value over the budget.
    """
    found: dict[str, Value] = {}
    unknown: list[ir.Value] = []
    for value in wanted:
        name = value.name or ""
        partial = inference.values.get(name, Partial())
        known = partial.value(name) or merge(partial, declared(value, bindings)).value(name)
        if known is None and inference.is_partial and (known := infer_again(value).value(name)) is not None:
            refuse_long_vector(value, known, budget)
        if known is None:
            unknown.append(value)
        else:
            found[name] = known
    if not unknown:
        return found, []
    found |= _see_in_a_run(model, unknown, inputs, found, given)
    names = quote_some(value.name or "" for value in unknown)
    return found, [f"seen in a run on generated inputs: the shapes of {counted(len(unknown), 'value')} ({names})"]


def _see_in_a_run(
    model: ir.Model,
    unknown: Sequence[ir.Value],
    inputs: Mapping[str, Value],
    known: Mapping[str, Value],
    given: Mapping[str, NDArray[Any]],
) -> dict[str, Value]:
    part = ir.Model(ir.convenience.extract(model.graph, model.graph.inputs, unknown), ir_version=model.ir_version)
    names = [value.name or "" for value in unknown]
    needed = sum(map(size_bytes, inputs.values()))
    if needed > (free := available_bytes()):
        why = f"which a run must show the shape of {quote(names[0])} on"
        fix = "give smaller dimensions, or store the shapes of its values in the model"
        raise over_budget(f"the size of the model's inputs, {why},", format_bytes(needed), format_bytes(free), fix)
    most = BUDGET.run_bytes + 2 * (needed + sum(map(size_bytes, known.values())))
    try:
        seen = open_session(part, most_bytes=most).describe(
            names, generate_inputs(model.graph, inputs, known, 0, given)
        )
    except ORT_ERRORS as e:
        maker = unknown[0].producer()
        made_by = f", made by {describe(maker)}," if maker is not None else ""
        raise GraphError(
            f"the shape of value {quote(names[0])}{made_by} cannot be inferred, and a run of the model to see it "
            f"failed ({reason(e)}){drawn_values(model.graph, given) or '; mend the model'}, or store the shapes of its "
            f"values in it"
        ) from e
    return {
        name: Value(name, DTYPES[dtype], shape) if dtype else Value(name, OPAQUE, ())
        for name, (dtype, shape) in zip(names, seen, strict=True)
    }
