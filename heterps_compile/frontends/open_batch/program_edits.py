"""Changes to an exported program that leave its results at the batch it fixes as they are, and hold at any other.

They are collected while the rules look at it (:mod:`.aten_rules`), and made when all of it has passed.

Left out: which change is right where.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten

Change = Callable[[], None]


@dataclass(frozen=True, slots=True)
class SetArgument:
    """Give a call another argument."""

    node: fx.Node
    name: str
    value: Any

    def __call__(self) -> None:
        """Change the call."""
        _set(self.node, self.name, self.value)


@dataclass(frozen=True, slots=True)
class SetSize:
    """Let a number in an argument of a call be the length of an axis of a value."""

    node: fx.Node
    name: str
    numbers: Sequence[Any]
    place: int
    like: fx.Node
    axis: int

    def __call__(self) -> None:
        """Change the call."""
        numbers = list(self.numbers)
        numbers[self.place] = _before(self.node, _aten.sym_size.int, self.like, self.axis)
        _set(self.node, self.name, numbers)


@dataclass(frozen=True, slots=True)
class Repeat:
    """Repeat an operand of a call, which has the rows of one sample, once for each of them.

    Attributes:
        name: Of the argument.
        index: In the argument, where that is a list.
        axis: Of the operand, of length ``rows``.
        like: Has ``rows`` of each sample along ``like_axis``.
    """

    node: fx.Node
    name: str
    index: int | None
    operand: fx.Node
    rank: int
    axis: int
    like: fx.Node
    like_axis: int
    rows: int = 1

    def __call__(self) -> None:
        """Put an ``expand``, or of several rows a ``repeat``, in front of the call."""
        length = _before(self.node, _aten.sym_size.int, self.like, self.like_axis)
        if self.rows == 1:
            sizes = [length if axis == self.axis else -1 for axis in range(self.rank)]
            made = _before(self.node, _aten.expand.default, self.operand, sizes)
        else:
            count = _before(self.node, operator.floordiv, length, self.rows)
            repeats = [count if axis == self.axis else 1 for axis in range(self.rank)]
            made = _before(self.node, _aten.repeat.default, self.operand, repeats)
        if self.name == "hx":  # a kernel of recurrent layers takes states where they lie
            made = _before(self.node, _aten.contiguous.default, made)
        if self.index is None:
            _set(self.node, self.name, made)
            return
        parts = list(argument(self.node, self.name))
        parts[self.index] = made
        _set(self.node, self.name, parts)


@dataclass(frozen=True, slots=True)
class CountSamples:
    """Let an index of a call, which is 0 for the one sample there is, be the number of each sample.

    Attributes:
        index: Of the argument ``indices``.
        shape: Of the new index, -1 where it has the samples.
        like: Has the samples along ``like_axis``.
    """

    node: fx.Node
    index: int
    shape: Sequence[int]
    like: fx.Node
    like_axis: int

    def __call__(self) -> None:
        """Put an ``arange`` in front of the call."""
        length = _before(self.node, _aten.sym_size.int, self.like, self.like_axis)
        device = self.like.meta["val"].device
        numbers = _before(self.node, _aten.arange.default, length, dtype=torch.int64, device=device, pin_memory=False)
        parts = list(argument(self.node, "indices"))
        parts[self.index] = _before(self.node, _aten.reshape.default, numbers, list(self.shape))
        _set(self.node, "indices", parts)


@dataclass(frozen=True, slots=True)
class AsReshape:
    """Let a call be one that gives its operand a constant shape."""

    node: fx.Node
    operand: fx.Node
    shape: Sequence[int]

    def __call__(self) -> None:
        """Change the call."""
        self.node.target = _aten.reshape.default
        self.node.args, self.node.kwargs = (self.operand, list(self.shape)), {}


def argument(node: fx.Node, name: str) -> Any:
    """Return an argument of a call of an op, its default where it is not given."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)  # noqa: S101 - the only calls that have rules
    for place, declared in enumerate(target._schema.arguments):
        if declared.name == name:
            return node.args[place] if place < len(node.args) else node.kwargs.get(name, declared.default_value)
    return None


def _set(node: fx.Node, name: str, value: Any) -> None:
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)  # noqa: S101 - the only calls that have rules
    place = [declared.name for declared in target._schema.arguments].index(name)
    if place < len(node.args):
        node.update_arg(place, value)
    else:
        node.update_kwarg(name, value)


def _before(node: fx.Node, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Put a call in front of another, as of the same module."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(op, args, kwargs)
    made.meta = {key: node.meta[key] for key in ("nn_module_stack", "stack_trace") if key in node.meta}
    return made
