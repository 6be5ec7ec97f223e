"""A call of an op of PyTorch, in an exported program, as the rules of the batch look at it.

Left out: the rules (:mod:`.aten_rules`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from heterps_compile.escape import printable

from .program_edits import AsReshape, Change, Repeat, argument
from .samples import Dims, Operands, Samples, normal

Made = Samples | tuple[Samples | None, ...] | None
"""Where what a call makes has its samples: one place for all it makes, or one for each."""


@dataclass(frozen=True, slots=True)
class CallView(Operands):
    """A call, what is known of the tensors it reads and makes, and the changes that it needs.

    Attributes:
        node: The call.
        fixed: The batch that the program fixes.
        made_of: Where what each node makes has its samples.
        constant: The tensor behind a node, None where it is not constant.
        edits: Changes so far, to which the rules add.
        operands: The tensors that it reads: argument, place in it where it is a list, and node.
        is_written: Whether what it makes shares memory with what some call changes in place.
    """

    node: fx.Node
    fixed: int
    made_of: Mapping[fx.Node, Made]
    constant: Callable[[fx.Node], torch.Tensor | None]
    edits: list[Change] = field(default_factory=list)
    operands: Sequence[tuple[str, int | None, fx.Node]] = ()
    is_written: bool = False

    def argument(self, name: str) -> Any:
        """Return an argument, or its default."""
        return argument(self.node, name)

    def has(self, name: str) -> bool:
        """Say whether the op takes an argument of that name."""
        return any(declared.name == name for declared in self.node.target._schema.arguments)  # type: ignore[union-attr]

    def positions(self, name: str) -> list[int]:
        """Return the positions of the tensors that are an argument, or in it."""
        return [i for i, (of, _, _) in enumerate(self.operands) if of == name]

    @property
    def given(self) -> Sequence[int]:
        """Return the positions of all operands."""
        return range(len(self.operands))

    def samples(self, position: int) -> Samples | None:
        """Return where an operand has its samples, None where it is the same for all."""
        if position >= len(self.operands):
            return None
        found = self.made_of.get(self.operands[position][2])
        assert not isinstance(found, tuple)  # noqa: S101 - an operand is one tensor
        return found

    def shape(self, position: int) -> Dims:
        """Return the shape of an operand; dynamic dimensions by their symbol."""
        return dims(self.operands[position][2].meta["val"])

    def label(self, position: int) -> str:
        """Return the name of an operand, in quotes."""
        return repr(printable(self.operands[position][2].name))

    @property
    def out_shape(self) -> Dims:
        """Return the shape of what it makes, of the first where it makes several."""
        made = self.node.meta["val"]
        return dims(made[0] if isinstance(made, (tuple, list)) else made)

    def axes(self, name: str, rank: int) -> list[int] | None:
        """Return an argument that is an axis, or several, counted from the front; None where it is not given."""
        found = self.argument(name)
        if found is None or found == []:
            return None
        return [normal(int(axis), rank) for axis in (found if isinstance(found, (tuple, list)) else [found])]

    def axis(self, name: str = "dim") -> int:
        """Return an argument that is an axis of the first operand, counted from the front."""
        return normal(int(self.argument(name)), self.rank(0))

    def as_reshape(self, samples: Samples) -> Samples:
        """Let the call be a reshape that keeps the samples apart."""
        if self.is_written:
            self.refuse("it is a view of what is changed in place")
        made = self.numbers(self.out_shape)
        found = self.placed(samples, self.shape(0), made)
        shape = [-1 if i == found.axis else dim for i, dim in enumerate(made)]
        self.edits.append(AsReshape(self.node, self.operands[0][2], shape))
        return found

    def widen(self, position: int, axis: int, like: int, samples: Samples) -> None:
        """Repeat an operand that is the same for all samples along an axis, as often as another has samples."""
        self.check_wide(position, axis, samples)
        name, index, operand = self.operands[position]
        rank, other = self.rank(position), self.operands[like][2]
        self.edits.append(Repeat(self.node, name, index, operand, rank, axis, other, samples.axis))

    def repeat_rows(self, position: int, axis: int, like: int, samples: Samples) -> None:
        """Repeat the rows that an operand without samples has along an axis, as often as another has samples."""
        name, index, operand = self.operands[position]
        rank, other = self.rank(position), self.operands[like][2]
        self.edits.append(Repeat(self.node, name, index, operand, rank, axis, other, samples.axis, samples.rows))


def operands_of(node: fx.Node) -> list[tuple[str, int | None, fx.Node]]:
    """Return the tensors that a call of an op reads: argument, place in it where it is a list, and node."""
    found: list[tuple[str, int | None, fx.Node]] = []
    for declared in node.target._schema.arguments:  # type: ignore[union-attr]
        given = argument(node, declared.name)
        if is_tensor(given):
            found.append((declared.name, None, given))
        elif isinstance(given, (tuple, list)):
            found += [(declared.name, place, one) for place, one in enumerate(given) if is_tensor(one)]
    return found


def is_tensor(value: Any) -> bool:
    """Say whether an argument of a call is a node that makes a tensor."""
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def dims(tensor: torch.Tensor) -> Dims:
    """Return the shape of a fake tensor; dynamic dimensions by their symbol."""
    return tuple(dim if isinstance(dim, int) else str(dim) for dim in tensor.shape)
