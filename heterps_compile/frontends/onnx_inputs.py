"""Make up inputs that an ONNX model accepts, from a seed; what the user gave is taken as it is.

What an input means decides what is drawn for it:

1. Whole numbers that index a table (the input reaches ``Gather`` or the like through nodes that only move or shift
   it) lie below the smallest table they index. So do floats that are cast to indices, in CTR models that take all
   their features as one array.
2. Whole numbers without a dimension, or with one of length 1, that the model compares with constants (``Equal``: a
   sample rate, a mode) are the first of these.
3. Other ``int32``, ``int64`` and the like are ones: a length, a count or a step of 1 is always valid. With two
   dimensions or more they are masks of padded sequences, ones first and then zeros, at least one 1 a row.
4. ``uint8`` and ``int8`` (images, quantised values) take all values of their type.
5. Booleans are fair coins, the first of each row True, so that no row is masked out whole.
6. Floats are standard normal. Strings are numerals.

Left out: relations between inputs (two lengths that must agree), ranges that only a custom op knows.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from heterps_compile.errors import InputError
from heterps_compile.ir.graph import Value

from .onnx_names import quote, quote_some
from .onnx_ops import int_attribute

Array = NDArray[Any]

# Ops that hand the elements of their first input, or of every one, on as they are.
_FIRST_INPUT = frozenset(
    {
        "Cast", "CastLike", "Clip", "Compress", "Dropout", "Expand", "Flatten", "Floor", "Gather", "GatherElements",
        "GatherND", "Identity", "Pad", "ReduceMax", "ReduceMin", "Reshape", "Resize", "ReverseSequence", "Round",
        "SequenceAt", "Slice", "Split", "SplitToSequence", "Squeeze", "Tile", "TopK", "Transpose", "Unique",
        "Unsqueeze",
    }
)  # fmt: skip
_EVERY_INPUT = frozenset({"Concat", "Max", "Min", "SequenceConstruct"})
_NUMPY_OWN = frozenset(
    {
        "float16", "float32", "float64", "complex64", "complex128",
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    }
)  # fmt: skip
_TABLES_OF_EMBED_LAYER_NORM = {0: 2, 1: 4, 8: 3}  # index input -> table input of com.microsoft's op


def generate_inputs(
    graph: ir.Graph,
    inputs: Mapping[str, Value],
    known: Mapping[str, Value],
    seed: int,
    given: Mapping[str, Array] = MappingProxyType({}),
) -> dict[str, Array]:
    """Draw an array for every input of a normalised graph.

    Args:
        graph: The graph.
        inputs: Its inputs, shapes in numbers.
        known: Values inside whose shapes are known, for tables that are no initialisers.
        seed: The same seed gives the same arrays.
        given: Arrays that the user gave, by input; where a shape differs, their elements are repeated or cut along it.

    Raises:
        InputError: where an input has a data type that numpy cannot hold.
    """
    rng = np.random.default_rng(seed)
    drawn = {value.name or "": _draw(rng, value, inputs[value.name or ""], known) for value in graph.inputs}
    return drawn | {name: fit_array(array, drawn[name].shape) for name, array in given.items() if name in drawn}


def drawn_values(graph: ir.Graph, given: Mapping[str, Array]) -> str:
    """Write a hint on inputs with drawn values; "" without any."""
    drawn = [
        value.name or ""
        for value in graph.inputs
        if value.name not in given and value.dtype is not None and not value.dtype.is_floating_point()
    ]
    if not drawn:
        return ""
    return (
        f"; values of {quote_some(drawn)} were drawn, and may not be what the model takes. Fix: --input "
        f"{quote(drawn[0])[1:-1]}=VALUE or --inputs FILE.npz (in Python example_inputs={{{quote(drawn[0])}: ...}})"
    )


def fit_array(array: Array, shape: Sequence[int]) -> Array:
    """Make an array of a shape: one number fills it, rows are repeated or cut where a batch differs."""
    if array.ndim == 0 < len(shape):
        return np.full(shape, array, array.dtype)
    for axis, size in enumerate(shape):
        if array.shape[axis] != size:
            array = np.take(array, np.arange(size) % max(array.shape[axis], 1), axis)
    return array


def _draw(rng: np.random.Generator, start: ir.Value, value: Value, known: Mapping[str, Value]) -> Array:
    limit = _index_limit(start, known)
    shape = tuple(dim for dim in value.shape if isinstance(dim, int))
    if value.dtype == "string":
        return np.asarray(rng.integers(0, 10, shape)).astype(str).astype(object)
    if value.dtype == "bool":
        coins = np.asarray(rng.integers(0, 2, shape), np.bool_)
        if shape:
            coins[..., :1] = True
        return coins
    if value.dtype not in _NUMPY_OWN:
        raise InputError(
            f"input {quote(value.name)} is {value.dtype}, which ONNX Runtime takes no arrays of; export the model "
            f"with another data type at its inputs"
        )
    dtype = np.dtype(value.dtype)
    if limit is not None:
        return np.asarray(rng.integers(0, max(limit, 1), shape), dtype)
    if dtype.kind in "iu":
        if dtype.itemsize == 1:
            bounds = np.iinfo(dtype)
            return np.asarray(rng.integers(bounds.min, bounds.max + 1, shape), dtype)
        if len(shape) < 2:
            return np.full(shape, _compared_with(start) if shape in ((), (1,)) else 1, dtype)
        lengths = rng.integers(1, max(shape[-1], 1) + 1, (*shape[:-1], 1))
        return (np.arange(shape[-1]) < lengths).astype(dtype)
    if dtype.kind == "c":
        return np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape), dtype)
    return np.asarray(rng.standard_normal(shape), dtype)


def _compared_with(start: ir.Value) -> int:
    """Find the first constant that the elements of a value are compared with; 1 where there is none."""
    pending, seen = [start], {start}
    while pending:
        value = pending.pop(0)
        for node, place in value.uses():
            other = node.inputs[1 - place] if node.op_type == "Equal" else None
            tensor = None if other is None else ir.convenience.get_const_tensor(other)
            if tensor is not None and tensor.dtype.is_integer() and tensor.size:
                return int(tensor.numpy().reshape(-1)[0])
            if _shift(node, place) is not None:
                fresh = [out for out in node.outputs if out not in seen]
                seen.update(fresh)
                pending += fresh
    return 1


def _index_limit(start: ir.Value, known: Mapping[str, Value]) -> int | None:
    """Compute the number that a value's elements must stay below to be valid indices, or None where they are none."""
    limits = []
    pending = [(start, 0)]
    seen = {start}
    while pending:
        value, shift = pending.pop()
        for node, place in value.uses():
            size = _indexed_size(node, place, known)
            if size is not None:
                limits.append(size - shift)
                continue
            step = _shift(node, place)
            if step is None:
                continue
            for out in node.outputs:
                if out not in seen:
                    seen.add(out)
                    pending.append((out, shift + step))
    return min(limits, default=None)


def _shift(node: ir.Node, place: int) -> int | None:
    """Find what a node adds to the elements of an input it hands on, or None where it does not hand them on."""
    op = node.op_type
    if op in _EVERY_INPUT or (op in _FIRST_INPUT and place == 0) or (op == "Where" and place > 0):
        return 0
    if op == "Add" or (op == "Sub" and place == 0):
        other = node.inputs[1 - place]
        tensor = None if other is None else ir.convenience.get_const_tensor(other)
        if tensor is not None and tensor.dtype.is_integer() and tensor.size:
            numbers = tensor.numpy()
            return int(numbers.max()) if op == "Add" else -int(numbers.min())
    return None


def _indexed_size(node: ir.Node, place: int, known: Mapping[str, Value]) -> int | None:
    """Compute the size of the smallest axis that a node indexes by an input, or None where it indexes nothing by it."""
    op = node.op_type
    if op == "EmbedLayerNormalization" and place in _TABLES_OF_EMBED_LAYER_NORM:
        table = _shape(node.inputs[_TABLES_OF_EMBED_LAYER_NORM[place]], known)
        return table[0] if table else None
    if op == "OneHot" and place == 0:
        depth = None if node.inputs[1] is None else ir.convenience.get_const_tensor(node.inputs[1])
        return None if depth is None else int(depth.numpy().reshape(-1)[0])
    if place != 1 or op not in (
        "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Scatter", "GatherBlockQuantized"
    ):  # fmt: skip
        return None
    table = _shape(node.inputs[0], known)
    if not table:
        return None
    if op.endswith("ND"):
        indices = _shape(node.inputs[1], known)
        first = int_attribute(node, "batch_dims", 0)
        return min(table[first : first + indices[-1]] if indices else table[first:], default=None)
    axis = int_attribute(node, "axis", int_attribute(node, "gather_axis", 0))
    return table[axis] if -len(table) <= axis < len(table) else None


def _shape(value: ir.Value | None, known: Mapping[str, Value]) -> tuple[int, ...] | None:
    if value is None:
        return None
    if value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    found = known.get(value.name or "")
    return None if found is None else tuple(dim for dim in found.shape if isinstance(dim, int))
