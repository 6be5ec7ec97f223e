"""Name the free dimensions of an ONNX model's inputs, and give them their numbers.

A free dimension has a name (a *symbol*), or none, and then goes by its input and its place: ``x_0`` is the
first dimension of ``x``. A symbol may be a sum, difference or product of others (``past + seq``), and then has their
number. ``batch`` is the number of the *batch symbol*, the one that most inputs begin with, and of every nameless first
dimension that nothing else binds.

Not covered: opening a batch that the model fixes (``open_batch/``); numbers that no user gave
(:mod:`.onnx_free_dims`); free dimensions of values inside the graph (:mod:`.onnx_shapes` finds their numbers).
"""

import ast
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from heterps_compile.errors import InputError, UnknownNameError, UnsupportedOpError
from heterps_compile.ir.default_size import DefaultSize
from heterps_compile.ir.graph import Dim
from heterps_compile.options import MOST_WHOLE

from .onnx_names import free_name, quote

_LONGEST_EXPRESSION = 200
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True, slots=True)
class BoundInputs:
    """The shapes of a model's inputs and the numbers of their symbols.

    Attributes:
        shapes: Of every input by name; a symbol stands for what is dynamic.
        bindings: The number of every symbol that has one.
        batch_symbol: The symbol of the batch, or None where the batch is a fixed number.
        nameless: Descriptions of the dimensions that have no name in the model, by the symbol made up for them.
    """

    shapes: Mapping[str, tuple[Dim, ...]]
    bindings: Mapping[str, int]
    batch_symbol: str | None
    nameless: Mapping[str, str]

    @property
    def free(self) -> tuple[str, ...]:
        """Return the symbols without a number, in the order of the inputs."""
        every = dict.fromkeys(dim for shape in self.shapes.values() for dim in shape if isinstance(dim, str))
        return tuple(dim for dim in every if dim not in self.bindings)

    @property
    def batch(self) -> int:
        """Return the samples in one run."""
        if self.batch_symbol is not None:
            return self.bindings[self.batch_symbol]
        fixed = fixed_batch(self.shapes.values())
        return 1 if fixed is None else fixed

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input in numbers."""
        return tuple(dim if isinstance(dim, int) else self.bindings[dim] for dim in self.shapes[name])

    def bind(self, numbers: Mapping[str, int]) -> "BoundInputs":
        """Return the inputs with more numbers; symbols computed from them get theirs."""
        same = {name: n.same_as for name, n in numbers.items() if isinstance(n, DefaultSize) and n.same_as}
        shapes = {
            name: tuple(same.get(dim, dim) if isinstance(dim, str) else dim for dim in shape)
            for name, shape in self.shapes.items()
        }
        bound = replace(self, shapes=shapes, bindings={**self.bindings, **numbers})
        computed = {dim: number for dim in bound.free if (number := _evaluate(dim, bound.bindings)) is not None}
        return replace(bound, bindings={**bound.bindings, **computed}) if computed else bound


def fixed_batch(shapes: Iterable[Sequence[object]]) -> int | None:
    """Return the batch that a model fixes: what most inputs begin with; None where that is open, or none has any."""
    leading = [shape[0] for shape in shapes if shape]
    numbers = [dim for dim in leading if isinstance(dim, int)]
    return Counter(numbers).most_common(1)[0][0] if numbers and len(numbers) == len(leading) else None


def bind_inputs(
    inputs: Sequence[ir.Value],
    batch: int | None,
    shapes: Mapping[str, int],
    given: Mapping[str, Sequence[int]] | None = None,
) -> BoundInputs:
    """Bind the dynamic dimensions of the inputs as far as their numbers are given.

    Args:
        inputs: The inputs of the model.
        batch: The number of the batch dimension, or None where it is fixed, free or among ``shapes``.
        shapes: Numbers by symbol.
        given: Shapes of arrays that the user gave, by input; they bind symbols too.

    Raises:
        InputError: where a symbol gets two numbers, ``batch`` is not what the model fixes, or an array does not fit.
        UnknownNameError: where ``shapes`` has a name that is no symbol of the model.
        UnsupportedOpError: where an input is no tensor.
    """
    _check_numbers(batch, shapes)
    dims = {value.name or "": _symbolic_shape(value) for value in inputs}
    shown, nameless = _name_the_nameless(dims)
    symbols = {dim for shape in shown.values() for dim in shape if isinstance(dim, str)}
    for name in shapes:
        if name not in symbols:
            raise UnknownNameError("dimension", name, sorted(symbols))
    first_symbols = [shape[0] for shape in shown.values() if shape and isinstance(shape[0], str)]
    batch_symbol = Counter(first_symbols).most_common(1)[0][0] if first_symbols else None
    numbers = dict(shapes)
    if batch is not None:
        _bind_batch(batch, batch_symbol, fixed_batch(shown.values()), numbers)
    if batch_symbol is not None:
        if batch is not None:
            numbers[batch_symbol] = batch if numbers.get(batch_symbol) is None else numbers[batch_symbol]
        spare = {dim for dim in first_symbols if dim in nameless and dim not in numbers}
        shown = {
            name: tuple(batch_symbol if i == 0 and dim in spare else dim for i, dim in enumerate(shape))
            for name, shape in shown.items()
        }
    bound = BoundInputs(shown, {}, batch_symbol, nameless).bind(numbers)
    return bound.bind(_numbers_of_arrays(bound, given)) if given else bound


def symbols_of(inputs: Iterable[ir.Value]) -> dict[str, int]:
    """Return the names of the dynamic dimensions of inputs, and the first axis that each stands at."""
    shown, _ = _name_the_nameless({value.name or "": _symbolic_shape(value) for value in inputs})
    placed = [(dim, axis) for shape in shown.values() for axis, dim in enumerate(shape) if isinstance(dim, str)]
    return dict(reversed(placed))


def _numbers_of_arrays(bound: BoundInputs, given: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the numbers that arrays give to symbols.

    Raises:
        InputError: where an array has another shape than its input, or two arrays disagree.
    """
    found: dict[str, int] = {}
    for name, shape in given.items():
        wanted = bound.shapes[name]
        known = [dim if isinstance(dim, int) else {**bound.bindings, **found}.get(dim, dim) for dim in wanted]
        fits = len(shape) == len(known) and all(
            isinstance(dim, str) or dim == size for dim, size in zip(known, shape, strict=True)
        )
        if not fits:
            raise InputError(
                f"the value of input {quote(name)} has shape {list(shape)}; expected {known}. Fix: give an array of "
                f"that shape, or other numbers (--batch, --shape)"
            )
        found |= {dim: size for dim, size in zip(known, shape, strict=True) if isinstance(dim, str)}
    return found


def _evaluate(expression: str, numbers: Mapping[str, int]) -> int | None:
    """Return the number of a dimension named by an expression of others, such as ``past + seq``; else None."""
    if len(expression) > _LONGEST_EXPRESSION:
        return None
    try:
        number = _number_of(ast.parse(expression, mode="eval").body, numbers)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError, KeyError):
        return None
    return number if 0 <= number <= MOST_WHOLE else None


def _number_of(node: ast.expr, numbers: Mapping[str, int]) -> int:
    """Compute an expression of whole numbers and known names; raise ValueError or KeyError for any other."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_number_of(node.left, numbers), _number_of(node.right, numbers))
    if isinstance(node, ast.Name):
        return numbers[node.id]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError(type(node).__name__)


def _check_numbers(batch: int | None, shapes: Mapping[str, int]) -> None:
    if batch is not None and (not isinstance(batch, int) or batch < 1):
        raise InputError(f"the batch is {batch!r}; it must be a whole number, 1 or more")
    for name, number in shapes.items():
        # 0 is allowed: a cache of past tokens begins empty
        if not isinstance(number, int) or number < 0:
            raise InputError(f"dimension {quote(name)} is {number!r}; it must be a whole number, 0 or more")


def _symbolic_shape(value: ir.Value) -> list[int | str | None]:
    name = quote(value.name)
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise UnsupportedOpError(
            f"input {name} is no tensor but {type(value.type).__name__}; only tensors can be inputs: export the "
            f"model with its parts as inputs"
        )
    if value.shape is None or value.dtype is None:
        missing = "number of dimensions" if value.shape is None else "data type"
        raise InputError(f"input {name} has no {missing}; export the model with shapes and types of its inputs")
    return [dim if isinstance(dim, int) else dim.value or None for dim in value.shape]


def _name_the_nameless(
    dims: Mapping[str, Sequence[int | str | None]],
) -> tuple[dict[str, tuple[Dim, ...]], dict[str, str]]:
    """Return the shapes with a name in every dynamic dimension, and what the given names stand for."""
    taken = {dim for shape in dims.values() for dim in shape if isinstance(dim, str)}
    nameless: dict[str, str] = {}

    def named(name: str, shape: Sequence[int | str | None]) -> Iterator[Dim]:
        for place, dim in enumerate(shape):
            if dim is None:
                symbol = free_name(f"{name}_{place}", taken)
                nameless[symbol] = f"dimension {place}, which has no name in the model"
                yield symbol
            else:
                yield dim

    return {name: tuple(named(name, shape)) for name, shape in dims.items()}, nameless


def _bind_batch(batch: int, symbol: str | None, number: int | None, bindings: Mapping[str, int]) -> None:
    if symbol is None:
        if number is None:
            raise InputError(f"no input has a batch dimension to be {batch}; leave out --batch")
        if number != batch:
            raise InputError(
                f"the batch is to be {batch}, and the model fixes its batch at {number}; export it with a dynamic "
                f"batch or leave out --batch"
            )
    elif bindings.get(symbol, batch) != batch:
        raise InputError(
            f"the batch dimension {quote(symbol)} is to be both {batch} (--batch) and {bindings[symbol]} "
            f"(--shape {symbol}={bindings[symbol]}); give one of them"
        )
