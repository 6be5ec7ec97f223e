"""A copy of an ONNX graph whose float32 numbers are float64.

Nodes stay what and where they are; types of values, weights, constants in attributes and what a node is told to make
change. Float16 and quantised numbers stay as they are: a model asks for their rounding.

Left out: ops that know no float64; whoever runs the copy tells which.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from heterps_compile.errors import InputError
from heterps_compile.host_memory import available_bytes
from heterps_compile.ir.graph import Graph
from heterps_compile.units import format_bytes

from .noise import Noise
from .onnx_bodies import every_body, every_node
from .onnx_names import quote_some

_NARROW, _WIDE = "float32", "float64"
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "stash_type", "softmax_precision"})
"""Attributes that are numbers of a data type."""
_ROUNDING_OPS = ("Quantize", "QLinear", "Integer", "Attention")
_FULL = (_NARROW, _WIDE)
_DOUBLE = int(ir.DataType.DOUBLE)
_DEFAULTS: Mapping[str, tuple[ir.Attr, ...]] = {
    "ConstantOfShape": (ir.AttrTensor("value", ir.tensor(np.zeros(1))),),
    "SequenceEmpty": (ir.AttrInt64("dtype", _DOUBLE),),
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow"), (ir.AttrInt64("output_datatype", _DOUBLE),)),
    **dict.fromkeys(
        ("LayerNormalization", "GroupNormalization", "RMSNormalization"), (ir.AttrInt64("stash_type", _DOUBLE),)
    ),
}
"""What an op makes or computes with where its node does not say, which is float32."""


def graph_in_float64(graph: Graph, noise: Noise | None = None) -> Graph:
    """Build the same graph over a copy of its model in float64.

    Args:
        graph: The graph.
        noise: On its weights; None for none.

    Raises:
        InputError: where these do not fit the memory that is free.
    """
    narrow_bytes = sum({p.storage: p.size_bytes for p in graph.parameters.values() if p.dtype == _NARROW}.values())
    if 2 * narrow_bytes > available_bytes():
        raise InputError(
            f"the weights of {graph.name!r} in float64 take {format_bytes(2 * narrow_bytes)}, and "
            f"{format_bytes(available_bytes())} of memory are free"
        )
    model: ir.Model = graph.source.model.clone()
    generator = None if noise is None else np.random.default_rng(noise.seed)
    for value in _values(model.graph):
        if isinstance(value.type, ir.TensorType) and value.dtype is ir.DataType.FLOAT:
            value.type = ir.TensorType(ir.DataType.DOUBLE)  # another one: a copy shares its types with the original
        if value.const_value is not None:
            value.const_value = _noisy(_wide_tensor(value.const_value), noise, generator)
    for node in every_node(model.graph):
        _widen_node(node)
    return replace(
        graph,
        values={n: replace(v, dtype=_WIDE) if v.dtype == _NARROW else v for n, v in graph.values.items()},
        parameters={
            n: replace(p, dtype=_WIDE, size_bytes=2 * p.size_bytes) if p.dtype == _NARROW else p
            for n, p in graph.parameters.items()
        },
        source=replace(graph.source, model=model, path=None),
    )


def _noisy(tensor: ir.TensorProtocol, noise: Noise | None, generator: np.random.Generator | None) -> ir.TensorProtocol:
    if noise is None or generator is None or tensor.dtype is not ir.DataType.DOUBLE or not len(tensor.shape):
        return tensor
    array = tensor.numpy()
    return ir.Tensor(array * (1 + noise.size * generator.standard_normal(array.shape)), name=tensor.name)


def arrays_in_float64(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert float32 arrays to float64."""
    return {
        name: value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype == np.float32 else value
        for name, value in values.items()
    }


def ops_that_stay_narrow(graph: Graph) -> str:
    """Name the ops that may round to float32 or fewer bits in a copy in float64 too; "" where there are none."""
    found = {node.op for node in graph.nodes if "::" in node.op or any(part in node.op for part in _ROUNDING_OPS)}
    found |= {n.op for n in graph.nodes if any(_is_half(graph, name) for name in n.outputs)}
    return quote_some(sorted(found)) if found else ""


def _is_half(graph: Graph, name: str) -> bool:
    return name in graph.values and "float" in graph.values[name].dtype and graph.values[name].dtype not in _FULL


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    for held in (graph, *every_body(graph)):
        yield from held.inputs
        yield from held.initializers.values()
        for node in held:
            yield from node.outputs


def _wide_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if tensor.dtype is not ir.DataType.FLOAT:
        return tensor
    return ir.Tensor(tensor.numpy().astype(np.float64), name=tensor.name)


def _widen_node(node: ir.Node) -> None:
    held = [_wide_attribute(attribute) for attribute in node.attributes.values()]
    if node.domain == "":
        given = {attribute.name for attribute in held}
        held += [made for made in _DEFAULTS.get(node.op_type, ()) if made.name not in given]
    node.attributes.clear()
    node.attributes.update({attribute.name: attribute for attribute in held})


def _wide_attribute(attribute: ir.Attr) -> ir.Attr:
    if attribute.is_ref():
        return attribute
    name = attribute.name
    if attribute.type is ir.AttributeType.TENSOR:
        return ir.AttrTensor(name, _wide_tensor(attribute.as_tensor()))
    if attribute.type is ir.AttributeType.INT and name in _TYPE_ATTRIBUTES and attribute.value == ir.DataType.FLOAT:
        return ir.AttrInt64(name, _DOUBLE)
    if name == "value_float":  # a Constant of it is float32, whatever else
        return ir.AttrTensor("value", ir.tensor(np.float64(attribute.value)))
    if name == "value_floats":
        return ir.AttrTensor("value", ir.tensor(np.array(attribute.value, np.float64)))
    return attribute
