"""Rewrite what of an ONNX file the rest does not take into what it does: same results, other nodes.

1. Sparse initialisers and constants become dense ones.
2. A ``ZipMap`` at an output, which makes dictionaries of scores, is left out: the output is the tensor of scores.
3. A model of an opset before 7, which no runtime here runs, is converted to opset 7 by ONNX's own converter.

The model given is not changed.

Left out: maps and sparse tensors as inputs; maps that other nodes read.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.version_converter import convert_version

from heterps_compile.errors import InputError
from heterps_compile.escape import one_line, short, shorten
from heterps_compile.host_memory import available_bytes
from heterps_compile.units import counted, format_bytes

from .onnx_names import quote, quote_some

OLDEST_OPSET = 7
_ML = "ai.onnx.ml"
_OPSET_OF_IDENTITY = 13  # where a model has no op of ONNX's own domain before
_DEFAULT_DOMAINS = ("", "ai.onnx")
_REASON_SHOWN = 300
_LABELS_SHOWN = 6


def rewrite(proto: Any, what: str) -> tuple[Any, list[str]]:
    """Return a model that the rest takes, and notes on what was rewritten.

    Args:
        proto: Of the model; the same object comes back where nothing is to be rewritten.
        what: Names the model in messages.

    Raises:
        InputError: naming what cannot be rewritten, and why.
    """
    is_sparse = any(_sparse_values(graph) for graph in every_graph(proto.graph))
    zips = [node for node in proto.graph.node if (node.domain, node.op_type) == (_ML, "ZipMap")]
    opset = next((entry.version for entry in proto.opset_import if entry.domain in _DEFAULT_DOMAINS), None)
    is_old = opset is not None and 0 < opset < OLDEST_OPSET
    if not (is_sparse or zips or is_old):
        return proto, []
    made: Any = onnx.ModelProto()
    made.CopyFrom(proto)
    notes = []
    if is_sparse:
        names = [name for graph in every_graph(made.graph) for name in _make_dense(graph, what)]
        notes.append(f"made dense: {counted(len(names), 'sparse constant')} ({quote_some(names)})")
    notes += [
        _leave_out(made.graph, node) for node in made.graph.node if (node.domain, node.op_type) == (_ML, "ZipMap")
    ]
    if zips and opset is None:
        made.opset_import.add(domain="", version=_OPSET_OF_IDENTITY)
    if is_old:
        made = _convert(made, int(opset or 0), what)
        notes.append(f"converted from opset {opset} to {OLDEST_OPSET}, the oldest that the runtimes here run")
    return made, notes


def every_graph(graph: Any) -> Iterator[Any]:
    """Yield a graph, or a function, and all its subgraphs."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from every_graph(body)


def _sparse_values(graph: Any) -> bool:
    held = (attribute for node in graph.node for attribute in node.attribute)
    return bool(graph.sparse_initializer) or any(a.HasField("sparse_tensor") or a.sparse_tensors for a in held)


def _make_dense(graph: Any, what: str) -> list[str]:
    names = []
    for sparse in graph.sparse_initializer:
        names.append(sparse.values.name)
        graph.initializer.append(_dense(sparse, sparse.values.name, what))
    del graph.sparse_initializer[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.sparse_tensors:
                raise InputError(
                    f"node {quote(node.name or node.op_type)} of {what} holds a list of sparse tensors, which no op of "
                    f"ONNX takes; export the model again"
                )
            if attribute.HasField("sparse_tensor"):
                name = node.output[0] if node.output else node.name
                names.append(name)
                made = onnx.helper.make_attribute("value", _dense(attribute.sparse_tensor, name, what))
                attribute.CopyFrom(made)
    return names


def _dense(sparse: Any, name: str, what: str) -> Any:
    """Return a sparse tensor as a dense one; indices are places in the flat array, or one row of them an element.

    Raises:
        InputError: where it does not fit itself or the memory that is there.
    """
    shown, dims = f"the sparse tensor {quote(name)} of {what}", list(sparse.dims)
    if any(t.data_location == onnx.TensorProto.EXTERNAL for t in (sparse.values, sparse.indices)):
        raise InputError(f"{shown} has external data; make it dense (numpy) and export again")
    try:
        values: NDArray[Any] = onnx.numpy_helper.to_array(sparse.values)
        indices = onnx.numpy_helper.to_array(sparse.indices).astype(np.int64)
        size_bytes = prod(dims) * values.dtype.itemsize
        if size_bytes > available_bytes():
            raise InputError(
                f"{shown} is {format_bytes(size_bytes)} when dense ({short(dims)}), and "
                f"{format_bytes(available_bytes())} of memory are free; export the model with a smaller one"
            )
        places = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dims)
        if values.ndim != 1 or places.shape != values.shape or ((places < 0) | (places >= prod(dims))).any():
            raise ValueError(f"{values.size} values at {indices.shape} indices do not fit {short(dims)}")
    except (ValueError, TypeError, KeyError) as e:
        raise InputError(f"{shown} does not fit itself ({one_line(str(e))}); export the model again") from e
    dense = np.zeros(prod(dims), values.dtype)
    dense[places] = values
    return onnx.numpy_helper.from_array(dense.reshape(dims), name)


def _leave_out(graph: Any, node: Any) -> str:
    """Let the output of a ZipMap be the tensor it reads.

    Raises:
        InputError: where another node reads its dictionaries.
    """
    (result,) = node.output
    readers = [other for other in graph.node if result in other.input]
    output = next((value for value in graph.output if value.name == result), None)
    if readers or output is None:
        told = f"which {quote(readers[0].name or readers[0].op_type)} reads" if readers else "which nobody reads"
        raise InputError(
            f"the ZipMap {quote(node.name)} makes dictionaries, {told}, and only tensors go between stages; export the "
            f"model without it (skl2onnx: options={{'zipmap': False}})"
        )
    labels: list[Any] = []
    for attribute in node.attribute:
        labels += [label.decode("utf-8", "replace") for label in attribute.strings] or list(attribute.ints)
    some = ", ".join(map(str, labels[:_LABELS_SHOWN])) + (", ..." if len(labels) > _LABELS_SHOWN else "")
    shown = f"the ZipMap {quote(node.name or result)} was left out: the output {quote(result)}"
    source = node.input[0]
    node.CopyFrom(onnx.helper.make_node("Identity", [source], [result], node.name))
    output.type.Clear()
    output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return f"{shown} is a tensor, its columns the classes {shorten(some, _REASON_SHOWN)}, and no list of dictionaries"


def _convert(proto: Any, opset: int, what: str) -> Any:
    try:
        return convert_version(proto, OLDEST_OPSET)
    except (RuntimeError, ValueError, TypeError, IndexError) as e:  # whatever the converter raises of odd models
        reason = shorten(one_line(str(e)), _REASON_SHOWN)
        raise InputError(
            f"{what} is of opset {opset}, and no runtime here runs models before opset {OLDEST_OPSET}; ONNX's own "
            f"converter fails on it ({reason}); export it at opset {OLDEST_OPSET} or newer"
        ) from e
