"""Give the dynamic dimensions of an ONNX model's inputs their numbers.

A dynamic dimension has a name (a *symbol*), or none, and then goes by its input and its place: ``x_0`` is the
first dimension of ``x``. ``batch`` is the number of the *batch symbol*, the one that most inputs begin with, and
of every nameless first dimension that nothing else binds.

Left out: opening a batch that the model fixes (``open_batch/``); dynamic dimensions of values inside the graph
(:mod:`.onnx_shapes` finds their numbers).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from heterps_compile.errors import InputError, UnknownNameError, UnsupportedOpError
from heterps_compile.ir.graph import Dim

from .onnx_names import free_name, quote


@dataclass(frozen=True, slots=True)
class BoundInputs:
    """The shapes of a model's inputs and the numbers of their symbols.

    Attributes:
        shapes: Of every input by name; a symbol stands for what is dynamic.
        bindings: The number of every symbol.
        batch_symbol: The symbol of the batch, or None where the batch is a fixed number.
        batch: Samples in one run.
    """

    shapes: Mapping[str, tuple[Dim, ...]]
    bindings: Mapping[str, int]
    batch_symbol: str | None
    batch: int

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input in numbers."""
        return tuple(dim if isinstance(dim, int) else self.bindings[dim] for dim in self.shapes[name])


def fixed_batch(shapes: Iterable[Sequence[object]]) -> int | None:
    """Return the batch that a model fixes: what most inputs begin with; None where that is open, or none has any."""
    leading = [shape[0] for shape in shapes if shape]
    numbers = [dim for dim in leading if isinstance(dim, int)]
    return Counter(numbers).most_common(1)[0][0] if numbers and len(numbers) == len(leading) else None


def bind_inputs(inputs: Sequence[ir.Value], batch: int | None, shapes: Mapping[str, int]) -> BoundInputs:
    """Bind every dynamic dimension of the inputs.

    Args:
        inputs: The inputs of the model.
        batch: The number of the batch dimension, or None where it is fixed or among ``shapes``.
        shapes: Numbers by symbol.

    Raises:
        InputError: where a symbol gets no number or two, or ``batch`` is not what the model fixes.
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
    leading = [shape[0] for shape in shown.values() if shape]
    first_symbols = [dim for dim in leading if isinstance(dim, str)]
    batch_symbol = Counter(first_symbols).most_common(1)[0][0] if first_symbols else None
    bindings = dict(shapes)
    if batch is not None:
        _bind_batch(batch, batch_symbol, fixed_batch(shown.values()), bindings)
        if batch_symbol is not None:
            spare = {dim for dim in first_symbols if dim in nameless and dim not in bindings}
            shown = {
                name: tuple(batch_symbol if i == 0 and dim in spare else dim for i, dim in enumerate(shape))
                for name, shape in shown.items()
            }
            bindings[batch_symbol] = batch
    _refuse_unbound(shown, bindings, nameless)
    if batch_symbol is not None:
        samples = bindings[batch_symbol]
    else:
        fixed = fixed_batch(shown.values())
        samples = 1 if fixed is None else fixed
    return BoundInputs(shown, bindings, batch_symbol, samples)


def symbols_of(inputs: Iterable[ir.Value]) -> dict[str, int]:
    """Return the names of the dynamic dimensions of inputs, and the first axis that each stands at."""
    shown, _ = _name_the_nameless({value.name or "": _symbolic_shape(value) for value in inputs})
    placed = [(dim, axis) for shape in shown.values() for axis, dim in enumerate(shape) if isinstance(dim, str)]
    return dict(reversed(placed))


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
    return [
        dim if isinstance(dim, int) and dim >= 0 else (dim.value or None) if isinstance(dim, ir.SymbolicDim) else None
        for dim in value.shape
    ]


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


def _refuse_unbound(
    shown: Mapping[str, Sequence[Dim]], bindings: Mapping[str, int], nameless: Mapping[str, str]
) -> None:
    for name, shape in shown.items():
        for place, dim in enumerate(shape):
            if isinstance(dim, int) or dim in bindings:
                continue
            what = nameless.get(dim, f"dimension {place}")
            batch = " or --batch N" if place == 0 else ""
            raise InputError(
                f"input {quote(name)} has the dynamic dimension {quote(dim)} ({what}) and no number for it; "
                f"give it one with --shape {quote(dim)[1:-1]}=N{batch}"
            )
