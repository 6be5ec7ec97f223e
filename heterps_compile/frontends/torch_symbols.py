"""Symbolic dimensions: their names, their numbers, and shapes at those numbers.

A dimension that is one symbol keeps its name; one that is computed from symbols (``2*batch``) becomes a number.

Left out: which numbers a symbol may have beyond one range (divisibility and the like).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import zip_longest
from typing import Any

import torch

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.ir.graph import Dim, Graph
from heterps_compile.units import counted

from .torch_data_sizes import all_told, data_sizes
from .torch_program import Program

Symbol = Any  # a sympy.Symbol
_sympy: Any = import_module("sympy")  # its functions have no types


@dataclass(frozen=True, slots=True)
class Symbols:
    """The symbols of a program.

    Attributes:
        names: Name of each symbol.
        numbers: Number of each symbol.
        batch: The symbol of the batch dimension, or None.
    """

    names: Mapping[Symbol, str]
    numbers: Mapping[Symbol, int]
    batch: Symbol | None

    @property
    def bindings(self) -> dict[str, int]:
        """Compute the number of each symbol by its name."""
        return {name: self.numbers[symbol] for symbol, name in self.names.items()}

    def number(self, size: Any) -> int:
        """Compute the number a size stands for."""
        if isinstance(size, int):
            return size
        return int(size.node.expr.xreplace(self.numbers))

    def shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Find a fake tensor's shape in numbers."""
        return tuple(self.number(size) for size in tensor.shape)

    def dims(self, tensor: torch.Tensor) -> tuple[Dim, ...]:
        """Find a fake tensor's shape, symbols by name."""
        return tuple(
            self.names[size.node.expr]
            if isinstance(size, torch.SymInt) and size.node.expr in self.names
            else self.number(size)
            for size in tensor.shape
        )


def bind_symbols(program: Program, *, batch: int | None, shapes: Mapping[str, int]) -> Symbols:
    """Name every symbol of a program and give it a number: the user's, or else the example's.

    Symbols that no input has depend on data.

    Args:
        program: The program, its nodes with their fake values.
        batch: The user's number for the batch dimension.
        shapes: The user's numbers for other dimensions, by name.

    Raises:
        InputError: where a number is missing, or contradicts the model.
        UnknownNameError: where ``shapes`` names no dimension of the model.
    """
    model, nodes = program.name, list(program.graph.nodes)
    inputs = [(node.name, node.meta.get("val")) for node in nodes if node.op == "placeholder"]
    names, leading = _name_symbols(inputs, program.dimension_names)
    hints = _hints(inputs)
    makers = {symbol: node for symbol, node in data_sizes(nodes).items() if symbol not in names}
    for symbol in makers:
        names[symbol] = _unique(str(symbol), names)
    missing = {symbol: node for symbol, node in makers.items() if str(symbol) not in shapes}
    if missing:
        wanted = ", ".join(f"{str(symbol)!r}: N" for symbol in missing)
        raise InputError(
            f"{counted(len(missing), 'size')} of tensors of {model} depend on data: {all_told(missing)}; say what to "
            f"plan for (shapes={{{wanted}}})"
        )
    first = _first_tensor(inputs)
    numbers = dict(hints)
    by_name = {name: symbol for symbol, name in names.items()}
    for name, number in shapes.items():
        if name not in by_name:
            raise UnknownNameError("dimension", name, by_name)
        numbers[by_name[name]] = _positive(name, number)
    if batch is not None:
        if leading is not None:
            if names[leading] in shapes and shapes[names[leading]] != batch:
                raise InputError(f"the batch is {batch} and {names[leading]!r} is {shapes[names[leading]]}; give one")
            numbers[leading] = _positive("batch", batch)
        else:
            _check_fixed_batch(model, inputs, first, batch)
    for symbol, name in names.items():
        if symbol not in numbers:
            raise InputError(f"dimension {name!r} of {model} has no number; give it one (shapes={{{name!r}: ...}})")
        number = numbers[symbol]
        low, high = program.ranges.get(symbol, (0, float("inf")))
        if not low <= number <= high:
            raise InputError(
                f"dimension {name!r} of {model} is {number}, it may be {low:g} to {high:g}; "
                f"give a number in that range or export the model with a wider one"
            )
    return Symbols(names, numbers, leading)


def _hints(inputs: Sequence[tuple[str, Any]]) -> dict[Symbol, int]:
    """Solve each symbol's number from the example sizes, such as ``2*h``."""
    found: dict[Symbol, int] = {}
    sizes = [size for _, value in inputs for size in _sizes(value) if isinstance(size, torch.SymInt)]
    for size in sorted(sizes, key=lambda size: not size.node.expr.is_Symbol):
        symbols = _free(size)
        if len(symbols) == 1 and symbols[0] not in found and size.node.has_hint():
            roots = [n for n in _sympy.solve(size.node.expr - size.node.hint, symbols[0]) if n.is_Integer and n > 0]
            if len(roots) == 1:
                found[symbols[0]] = int(roots[0])
    return found


def inputs_of_computed_size(graph: Graph) -> list[str]:
    """Find the inputs of a torch graph that have a size, or are a number, computed from symbols (``2*batch``).

    The graph has numbers in place of these, which stay as they are where a symbol gets another number.
    """
    found = []
    for node in graph.source.graph.nodes:
        if node.op == "placeholder":
            pairs = zip_longest(_sizes(node.meta["val"]), graph.values[node.name].shape)
            if any(_free(size) and not isinstance(shown, str) for size, shown in pairs):
                found.append(node.name)
    return found


def _name_symbols(
    inputs: Sequence[tuple[str, Any]], user_names: Mapping[tuple[str, int], str]
) -> tuple[dict[Symbol, str], Symbol | None]:
    """Name the symbols of the inputs: as the user does, else ``batch`` where one leads, else ``INPUT_AXIS``."""
    names: dict[Symbol, str] = {}
    leading: Symbol | None = None
    first = _first_tensor(inputs)
    size = first.shape[0] if first is not None else None
    if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
        leading = size.node.expr
    for label_wins in (True, False):
        for name, value in inputs:
            for axis, size in enumerate(_sizes(value)):
                for symbol in _free(size):
                    label = user_names.get((name, axis)) if _plain(size, symbol) else None
                    if symbol in names or (label is None and label_wins):
                        continue
                    default = "batch" if symbol == leading else f"{name}_{axis}" if len(_sizes(value)) > 1 else name
                    names[symbol] = _unique(label or default, names)
    return names, leading


def _first_tensor(inputs: Sequence[tuple[str, Any]]) -> torch.Tensor | None:
    return next((v for _, v in inputs if isinstance(v, torch.Tensor) and v.dim() > 0), None)


def _sizes(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return list(value.shape)
    if isinstance(value, (tuple, list)):
        return [size for part in value for size in _sizes(part)]
    return [value] if isinstance(value, torch.SymInt) else []


def _free(size: Any) -> list[Symbol]:
    return sorted(size.node.expr.free_symbols, key=str) if isinstance(size, torch.SymInt) else []


def _plain(size: Any, symbol: Symbol) -> bool:
    return bool(size.node.expr == symbol)


def _unique(name: str, names: Mapping[Symbol, str]) -> str:
    taken, made, count = set(names.values()), name, 1
    while made in taken:
        made, count = f"{name}_{count}", count + 1
    return made


def _positive(name: str, number: int) -> int:
    if number < 1:
        raise InputError(f"dimension {name!r} is {number}; it must be 1 or more")
    return number


def _check_fixed_batch(model: str, inputs: Sequence[tuple[str, Any]], first: Any, batch: int) -> None:
    name = next((n for n, v in inputs if v is first), None)
    if first is None:
        raise InputError(f"{model} takes no tensor with a batch dimension; leave out the batch of {batch}")
    if int(first.shape[0]) != batch:
        raise InputError(
            f"{model} fixes its batch at {int(first.shape[0])} (input {name!r}), the request says {batch}; give "
            f"the nn.Module, of which the batch is opened, or example inputs of batch {batch}, or make the dimension "
            f"dynamic (dynamic_shapes), or leave out batch"
        )
