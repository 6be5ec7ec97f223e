"""What is known of the values of an ONNX model before it runs: shapes, and what shapes and constants alone decide.

ONNX's own inference leaves open what is computed from shapes by more than a few ops (the masks and expanded ids of
older exporters). There it is asked again node by node, with the numbers that its inputs are known to be.

Left out: values that depend on what the inputs hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from heterps_compile.frontends.onnx_bodies import subgraphs
from heterps_compile.frontends.onnx_ops import OPS
from heterps_compile.frontends.onnx_session import ORT_ERRORS, open_session
from heterps_compile.frontends.onnx_shapes import DTYPES, Partial, PartialShape, declared, infer, merge, read_type
from heterps_compile.frontends.onnx_structure import Roles
from heterps_compile.ir.graph import OpKind

from .node_view import Array

_LARGEST_CONSTANT = 2**16  # elements of what is computed to know a shape
_UNKNOWN = "unk__"  # what ONNX's inference calls a dimension that it does not know
_OTHER_SHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})  # the reference fails at some opsets
_COMPARES = frozenset({"GreaterOrEqual", "LessOrEqual"})
_NUMBERS = {name: number for number, name in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class KnownValues:
    """Shapes and constants of a normalised model at the batch that it fixes.

    Attributes:
        model: The model.
        roles: Of its nodes.
        inferred: What ONNX's inference finds, by name.
        trusts_model: Take shapes that the model states of values where inference finds none.
    """

    model: ir.Model
    roles: Roles
    inferred: Mapping[str, Partial]
    trusts_model: bool = True
    _types: dict[ir.Value, Partial] = field(default_factory=dict)
    _constants: dict[ir.Value, Array | None] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model, roles: Roles) -> "KnownValues":
        """Look at a model; O(nodes)."""
        made = cls(model, roles, infer(model, {}).values)
        for node in model.graph:  # in their order, so that nothing is asked for far back
            for value in node.outputs:
                made.type_of(value)
        return made

    def shape(self, value: ir.Value) -> PartialShape | None:
        """Return the shape of a value at the batch that the model fixes, its dynamic dimensions by name."""
        if value.const_value is not None:
            return tuple(value.const_value.shape.numpy())
        return self.type_of(value).shape

    def type_of(self, value: ir.Value) -> Partial:
        """Find what is known of a value that a node makes, where needed from the numbers that its node reads."""
        if value not in self._types:
            found = self.inferred.get(value.name or "", Partial())
            if self.trusts_model:
                found = merge(found, declared(value, {}))
            self._types[value] = found
            node = value.producer()
            if node is not None and not node.domain and not _is_known(found.shape):
                self._types[value] = merge(self._inferred_again(node, value), found)
        return self._types[value]

    def _inferred_again(self, node: ir.Node, value: ir.Value) -> Partial:
        """Return what ONNX infers of a node whose inputs are known by their numbers too."""
        if any(True for _ in subgraphs(node)):
            return Partial()
        types: dict[str, onnx.TypeProto] = {}
        data: dict[str, onnx.TensorProto] = {}
        for read in node.inputs:
            if read is not None and read.name:
                shape, dtype = self.shape(read), self.type_of(read).dtype or _dtype(read)
                if dtype not in _NUMBERS or shape is None:
                    return Partial()
                types[read.name] = onnx.helper.make_tensor_type_proto(_NUMBERS[dtype], shape)
                array = self.constant(read)
                if array is not None:
                    data[read.name] = onnx.numpy_helper.from_array(array, read.name)
        try:
            version = self.model.graph.opset_imports[""]
            schema = onnx.defs.get_schema(node.op_type, version, "")
            proto = ir.serde.serialize_node(node)
            found = onnx.shape_inference.infer_node_outputs(
                schema, proto, types, data, opset_imports=[onnx.helper.make_opsetid("", version)]
            )
        except Exception:  # noqa: BLE001 - inference raises anything; a rule that needs the shape refuses by name
            return Partial()
        made = read_type(found[value.name]) if value.name in found else Partial()
        return made if _is_known(made.shape) else merge(self._broadcast(node), made)

    def _broadcast(self, node: ir.Node) -> Partial:
        """Return what an op that works element by element makes, where ONNX defines it by others and infers nothing."""
        shapes = [self.shape(read) for read in node.inputs if read is not None]
        first = node.inputs[0]
        if OPS.get(node.op_type, (None,))[0] is not OpKind.ELEMENTWISE or first is None:
            return Partial()
        if not all(shape is not None and all(isinstance(size, int) for size in shape) for shape in shapes):
            return Partial()
        dtype = "bool" if node.op_type in _COMPARES else self.type_of(first).dtype
        return Partial(dtype, np.broadcast_shapes(*shapes))  # type: ignore[arg-type]

    def constant(self, value: ir.Value) -> Array | None:
        """Return what a value is at the batch that the model fixes, where shapes and constants alone decide it."""
        if value not in self._constants:
            self._constants[value] = None  # in case of a fault on the way
            self._constants[value] = self._compute(value)
        return self._constants[value]

    def _compute(self, value: ir.Value) -> Array | None:
        tensor, node = ir.convenience.get_const_tensor(value), value.producer()
        if tensor is not None:
            return np.asarray(tensor.numpy()) if tensor.size <= _LARGEST_CONSTANT else None
        if node is None or node.domain or any(True for _ in subgraphs(node)) or node in self.roles.random:
            return None
        if node.op_type in ("Shape", "Size"):
            return self._shape_array(node)
        made = self.shape(value)
        sizes = [size for size in made or () if isinstance(size, int)]
        if made is None or len(sizes) < len(made) or prod(sizes) > _LARGEST_CONSTANT:
            return None
        given = {v.name or "": self.constant(v) for v in node.inputs if v is not None}
        if any(array is None for array in given.values()):
            return None
        first = node.inputs[0] if node.inputs else None
        if node.op_type in _OTHER_SHAPES and first is not None:
            array = given[first.name or ""]
            return None if array is None or array.size != prod(sizes) else array.reshape(sizes)
        return self._evaluate(node, value, given)

    def _shape_array(self, node: ir.Node) -> Array | None:
        shape = None if node.inputs[0] is None else self.shape(node.inputs[0])
        if shape is None or not all(isinstance(dim, int) for dim in shape):
            return None
        array = np.array(shape, np.int64)
        if node.op_type == "Size":
            return np.array(np.prod(array), np.int64)
        start, end = node.attributes.get("start"), node.attributes.get("end")
        return array[slice(None if start is None else start.value, None if end is None else end.value)]

    def _evaluate(self, node: ir.Node, value: ir.Value, given: Mapping[str, Any]) -> Array | None:
        graph: Any = onnx.helper.make_graph(
            [ir.serde.serialize_node(node)],
            "node",
            [],
            [onnx.ValueInfoProto(name=value.name)],
            initializer=[onnx.numpy_helper.from_array(array, name) for name, array in given.items()],
        )
        imports = [onnx.helper.make_opsetid(d, v) for d, v in self.model.graph.opset_imports.items()]
        try:
            model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=imports))
            (result,) = open_session(model).run([value.name or ""], {})
        except ORT_ERRORS:
            return None  # without the number, the rule that needs it refuses by name
        return np.asarray(result)


def _is_known(shape: PartialShape | None) -> bool:
    """Say whether a shape has nothing open but dimensions that the model itself leaves open, by name."""
    return shape is not None and all(dim is not None and not str(dim).startswith(_UNKNOWN) for dim in shape)


def _dtype(value: ir.Value) -> str | None:
    return None if value.dtype is None else DTYPES.get(value.dtype.value)
