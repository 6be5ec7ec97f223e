"""The shapes of a stage's inputs, and which of their dimensions vary with the model's own.

They are found by asking twice, with two numbers for every symbol. ONNX's shape inference tells most; for the rest the
whole model runs once on tensors without memory.

Left out: shapes that depend on values; where one does, every dimension is the number the model was read with.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from heterps_compile.errors import HeterpsError
from heterps_compile.frontends.onnx_shapes import infer
from heterps_compile.ir.graph import Graph

from .from_onnx import constants_of, convert_model
from .onnx_ops.dtypes import TORCH_TYPES, torch_type
from .onnx_ops.shape_arithmetic import LARGEST

_SMALLEST = 2  # torch.export takes a dimension of 1 for a constant

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Multiple:
    """A dimension that is so many times a symbol of the model, and so much more; an unknown relation has no symbol."""

    symbol: str = ""
    times: int = 1
    plus: int = 0


@dataclass(frozen=True, slots=True)
class OpenShape:
    """A shape to trace with.

    Attributes:
        sizes: Its numbers.
        dims: For each dimension how it varies, None where it is fixed.
    """

    sizes: Shape
    dims: tuple[Multiple | None, ...]


def open_shapes(graph: Graph, names: Iterable[str], *, ones_stay: bool = False) -> dict[str, OpenShape]:
    """Return the shapes of values of a graph to trace with.

    Args:
        graph: The whole model.
        names: Of the values.
        ones_stay: Keep symbols fixed that have the number 1. A model may take no other, and then cannot be traced.
    """
    wanted = tuple(names)
    if not graph.bindings:
        return {name: _fixed(graph, name) for name in wanted}
    stay = {symbol: 1 for symbol, number in graph.bindings.items() if ones_stay and number == 1}
    numbers, others, _ = (bindings | stay for bindings in _three_bindings(graph))
    first, second = (_shapes(graph, wanted, bindings) for bindings in (numbers, others))
    if first is None or second is None:
        return {name: _fixed(graph, name) for name in wanted}
    found = {}
    for name in wanted:
        pairs = zip(first[name], second[name], strict=True)
        found[name] = OpenShape(first[name], tuple(_relation(a, b, numbers, others) for a, b in pairs))
    return found


def sizes_at_three(graph: Graph, names: Iterable[str]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the dimensions of values at three numbers of every symbol; {} if they depend on values."""
    wanted = tuple(names)
    found = [_shapes(graph, wanted, numbers) for numbers in _three_bindings(graph)]
    return {
        name: tuple(zip(*(shapes[name] for shapes in found if shapes), strict=True)) for name in wanted if all(found)
    }


def _three_bindings(graph: Graph) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Choose three numbers for each symbol, the last one far off."""
    numbers = {symbol: max(number, _SMALLEST) for symbol, number in graph.bindings.items()}
    others = {symbol: number + 1 + i for i, (symbol, number) in enumerate(numbers.items())}
    return numbers, others, {symbol: 2 * number + 3 for symbol, number in others.items()}


def _relation(one: int, other: int, numbers: Mapping[str, int], others: Mapping[str, int]) -> Multiple | None:
    """Find how a dimension varies, by its sizes at two numbers of every symbol."""
    if one == other:
        return None
    for symbol, number in numbers.items():
        if one % number == 0 and one // number * others[symbol] == other:
            return Multiple(symbol, one // number)
    for symbol, number in numbers.items():
        if other - one == others[symbol] - number:
            return Multiple(symbol, 1, one - number)
    return Multiple()


def _fixed(graph: Graph, name: str) -> OpenShape:
    shape = graph.shape(name)
    return OpenShape(shape, (None,) * len(shape))


def _shapes(graph: Graph, names: tuple[str, ...], bindings: Mapping[str, int]) -> dict[str, Shape] | None:
    """Return shapes where the model's symbols stand for these numbers, or None where a value decides them."""
    bound = {
        name: tuple(d if isinstance(d, int) else bindings[d] for d in graph.values[name].shape) for name in graph.inputs
    }
    found = {name: bound[name] for name in names if name in bound}
    if len(found) < len(names):
        for name, partial in infer(graph.source.model, bound).values.items():
            whole = tuple(d for d in partial.shape or () if isinstance(d, int))
            if name in names and partial.shape is not None and len(whole) == len(partial.shape):
                found.setdefault(name, whole)
    missing = tuple(name for name in names if name not in found)
    if missing:
        seen = _run_without_memory(graph, missing, bound)
        if seen is None:
            return None
        found.update(zip(missing, seen, strict=True))
    return found


def _run_without_memory(graph: Graph, names: tuple[str, ...], bound: Mapping[str, Shape]) -> list[Shape] | None:
    model = graph.source.model
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    constants = constants_of(graph)
    with mode:
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is not None and tensor.size > LARGEST and tensor.dtype.value in TORCH_TYPES:
                constants.tensors[name] = torch.empty(tensor.shape.numpy(), dtype=TORCH_TYPES[tensor.dtype.value])
    try:
        whole = convert_model(model, constants, outputs=names)
        with mode, torch.no_grad():
            inputs = [torch.zeros(bound[name], dtype=torch_type(graph.values[name].dtype)) for name in whole.inputs]
            return [tuple(int(d) for d in result.shape) for result in whole(*inputs)]
    except HeterpsError:
        return None  # an op needs values, which such tensors do not have
