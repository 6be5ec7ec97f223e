"""A node of an ONNX model as the rules of the batch look at it.

Left out: the rules (:mod:`.rules`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from heterps_compile.frontends.onnx_facts import stated_defaults
from heterps_compile.frontends.onnx_names import op_name, quote
from heterps_compile.frontends.onnx_shapes import PartialShape

from .edits import AsReshape, Edit, Widen

Array = NDArray[Any]


class MixesError(Exception):
    """Samples of a batch do not stay apart in a node, or it is not proven; caught where the batch is opened."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Where a value has its samples. A value without it is the same for all samples.

    Attributes:
        axis: Along which they lie, all rows of one side by side.
        rows: Of each sample.
    """

    axis: int
    rows: int = 1


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node, what is known of the values it reads and makes, and the changes that it needs.

    Attributes:
        node: The node.
        opset: Of its domain.
        fixed: The batch that the model fixes.
        samples_of: Where each value has its samples.
        shape_of: The shape of a value, as far as it is known, at the batch that the model fixes.
        constant: The array behind a value, None where it is not constant.
        edits: Changes so far, to which the rules add.
    """

    node: ir.Node
    opset: int
    fixed: int
    samples_of: Mapping[ir.Value, Samples]
    shape_of: Callable[[ir.Value], PartialShape | None]
    constant: Callable[[ir.Value], Array | None]
    edits: list[Edit] = field(default_factory=list)

    def refuse(self, why: str) -> NoReturn:
        """Stop: the batch cannot be opened here."""
        raise MixesError(why)

    @property
    def name(self) -> str:
        """Return the op, with its domain where that is not ONNX's own."""
        return op_name(self.node)

    def value(self, position: int) -> ir.Value | None:
        """Return an input, None where it is not given."""
        return self.node.inputs[position] if position < len(self.node.inputs) else None

    @property
    def given(self) -> list[int]:
        """Return the positions of the inputs that are given."""
        return [i for i, value in enumerate(self.node.inputs) if value is not None]

    def samples(self, position: int) -> Samples | None:
        """Return where an input has its samples, None where it is the same for all."""
        value = self.value(position)
        return None if value is None else self.samples_of.get(value)

    def only(self, *positions: int) -> Samples | None:
        """Return where the first of these inputs has its samples; no input besides may have some."""
        for i, value in enumerate(self.node.inputs):
            if i not in positions and value is not None and self.samples(i) is not None:
                self.refuse(f"its input {quote(value.name)} would differ from sample to sample, and may not")
        return self.samples(positions[0])

    def shape(self, position: int) -> PartialShape:
        """Return the shape of an input."""
        value = self.value(position)
        found = None if value is None else self.shape_of(value)
        if found is None:
            self.refuse(f"the shape of its input {position} is not known")
        return found

    def rank(self, position: int) -> int:
        """Return the number of dimensions of an input."""
        return len(self.shape(position))

    @property
    def out_shape(self) -> PartialShape:
        """Return the shape of the first output."""
        found = self.shape_of(self.node.outputs[0])
        if found is None:
            self.refuse("the shape of what it makes is not known")
        return found

    def numbers(self, shape: PartialShape) -> tuple[int, ...]:
        """Return a shape that has numbers only."""
        found = tuple(dim for dim in shape if isinstance(dim, int))
        if len(found) < len(shape):
            open_ = next((dim for dim in shape if isinstance(dim, str)), "")
            of = f" {quote(open_)}" if open_ else ""
            self.refuse(f"it works on sizes, and one of them is the dynamic dimension{of}")
        return found

    def array(self, position: int) -> Array | None:
        """Return an input that is constant, None where it is not, or not given."""
        value = self.value(position)
        return None if value is None else self.constant(value)

    def ints(self, name: str, position: int, what: str) -> tuple[int, ...] | None:
        """Return whole numbers that an op takes as an attribute or as an input; None where they are not given."""
        found = self.attribute(name)
        if found is not None:
            return tuple(int(n) for n in np.ravel(found))
        if self.value(position) is None:
            return None
        return self.numbers_of(position, what)

    def numbers_of(self, position: int, what: str) -> tuple[int, ...]:
        """Return whole numbers that are an input; they must be the same in every run."""
        array = self.array(position)
        if array is None:
            self.refuse(f"its {what} is no constant")
        return tuple(int(n) for n in array.reshape(-1))

    def attribute(self, name: str) -> Any:
        """Return an attribute, or its default; None where it has neither."""
        found = self.node.attributes.get(name)
        if found is not None:
            return found.value
        return stated_defaults(self.node.domain, self.node.op_type, self.opset).get(name)

    def axis(self, rank: int, default: int, name: str = "axis") -> int:
        """Return an attribute that is an axis, counted from the front."""
        found = self.attribute(name)
        return normal(default if found is None else int(found), rank)

    def uses(self, output: int) -> bool:
        """Say whether anybody reads an output."""
        outputs = self.node.outputs
        return output < len(outputs) and bool(outputs[output].uses() or outputs[output].is_graph_output())

    def placed(self, samples: Samples, shape: PartialShape, made: PartialShape) -> Samples:
        """Return where samples lie when the elements are given another shape in the same order.

        Dimensions of length 1 leave several places. The batch by itself is the likeliest, then where it was.
        """
        if 0 in made:
            self.refuse("it makes a value without elements")
        before = _product(shape[: samples.axis])
        found = [
            Samples(axis, dim // self.fixed)
            for axis, dim in enumerate(made)
            if before is not None
            and _product(made[:axis]) == before
            and (isinstance(dim, int) and dim > 0 and dim % self.fixed == 0)
        ]
        if not found:
            self.refuse(f"it joins the batch with what lies before it: {_shown(shape)} becomes {_shown(made)}")

        def unlike(one: Samples) -> tuple[bool, bool, bool, bool, int]:
            is_shifted = one.axis - len(made) != samples.axis - len(shape)
            return one.rows != 1, one.rows != samples.rows, one.axis != samples.axis, is_shifted, one.axis

        return min(found, key=unlike)

    def as_reshape(self, samples: Samples) -> Samples:
        """Let the node be a Reshape that keeps the samples apart."""
        if self.uses(1):
            self.refuse("it makes more than one value")
        made = self.numbers(self.out_shape)
        found = self.placed(samples, self.shape(0), made)
        self.edits.append(AsReshape(self.node, [-1 if i == found.axis else dim for i, dim in enumerate(made)]))
        return found

    def aligned(self, positions: Iterable[int], behind: int = 0) -> tuple[int, int] | None:
        """Return where samples lie in operands that are broadcast: the axis from the end, and the rows of each.

        Args:
            positions: Of the operands.
            behind: So many dimensions at the end are not broadcast.
        """
        operands = list(positions)
        found: tuple[int, int] | None = None
        for i in operands:
            samples = self.samples(i)
            if samples is not None:
                place = samples.axis - self.rank(i), samples.rows
                if found not in (None, place):
                    self.refuse("its operands have their samples along different axes, so that it pairs each with each")
                found = place
        if found is None:
            return None
        if found[0] >= -behind:
            self.refuse("one of its operands has its samples where the other has none")
        for i in operands:
            if self.samples(i) is None:
                self.check_same(i, found[0])
        return found

    def check_same(self, position: int, place: int) -> None:
        """Have an input without samples be one row, or none, along an axis counted from the end."""
        shape = self.shape(position)
        if len(shape) >= -place and shape[place] != 1:
            value = self.value(position)
            self.refuse(
                f"its input {quote(value.name if value is not None else '')} of shape {_shown(shape)} has "
                f"{'several' if not isinstance(shape[place], int) else shape[place]} rows where the batch lies"
            )

    def widen(self, position: int, axis: int, like: int, samples: Samples) -> None:
        """Repeat an input that is the same for all samples along an axis, as often as another has samples."""
        self.check_same(position, axis - self.rank(position))
        if samples.rows != 1:
            self.refuse("what is the same for all samples would have to be repeated for the rows of each")
        value = self.value(like)
        if value is not None:
            self.edits.append(Widen(self.node, position, self.rank(position), axis, value, samples.axis))


def normal(axis: int, rank: int) -> int:
    """Return an axis counted from the front."""
    return axis + rank if axis < 0 else axis


def _product(dims: Sequence[int | str | None]) -> tuple[int, tuple[str, ...]] | None:
    """Return a product of sizes, the dynamic ones by name; None where one is not known."""
    if any(dim is None for dim in dims):
        return None
    return prod(d for d in dims if isinstance(d, int)), tuple(sorted(d for d in dims if isinstance(d, str)))


def _shown(shape: PartialShape) -> str:
    return (
        "["
        + ", ".join("?" if dim is None else str(dim) if isinstance(dim, int) else quote(dim)[1:-1] for dim in shape)
        + "]"
    )
