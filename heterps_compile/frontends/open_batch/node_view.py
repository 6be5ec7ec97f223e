"""A node of an ONNX model as the rules of the batch look at it.

Left out: the rules (:mod:`.rules`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from heterps_compile.frontends.onnx_facts import stated_defaults
from heterps_compile.frontends.onnx_names import op_name, quote
from heterps_compile.frontends.onnx_shapes import PartialShape

from .edits import AsReshape, Edit, RepeatRows, Widen
from .samples import Operands, Samples, normal

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class NodeView(Operands):
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

    def shape(self, position: int) -> PartialShape:
        """Return the shape of an input."""
        value = self.value(position)
        found = None if value is None else self.shape_of(value)
        if found is None:
            self.refuse(f"the shape of its input {position} is not known")
        return found

    @property
    def out_shape(self) -> PartialShape:
        """Return the shape of the first output."""
        found = self.shape_of(self.node.outputs[0])
        if found is None:
            self.refuse("the shape of what it makes is not known")
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

    def label(self, position: int) -> str:
        """Return the name of an input, in quotes."""
        value = self.value(position)
        return quote(value.name if value is not None else "")

    def axis(self, rank: int, default: int, name: str = "axis") -> int:
        """Return an attribute that is an axis, counted from the front."""
        found = self.attribute(name)
        return normal(default if found is None else int(found), rank)

    def uses(self, output: int) -> bool:
        """Say whether anybody reads an output."""
        outputs = self.node.outputs
        return output < len(outputs) and bool(outputs[output].uses() or outputs[output].is_graph_output())

    def as_reshape(self, samples: Samples) -> Samples:
        """Let the node be a Reshape that keeps the samples apart."""
        if self.uses(1):
            self.refuse("it makes more than one value")
        made = self.numbers(self.out_shape)
        found = self.placed(samples, self.shape(0), made)
        self.edits.append(AsReshape(self.node, [-1 if i == found.axis else dim for i, dim in enumerate(made)]))
        return found

    def widen(self, position: int, axis: int, like: int, samples: Samples) -> None:
        """Repeat an input that is the same for all samples along an axis, as often as another has samples."""
        self.check_wide(position, axis, samples)
        value = self.value(like)
        if value is not None:
            self.edits.append(Widen(self.node, position, self.rank(position), axis, value, samples.axis))

    def repeat_rows(self, position: int, axis: int, like: int, samples: Samples) -> None:
        """Repeat the rows that an input without samples has along an axis, as often as another has samples."""
        value = self.value(like)
        if value is not None:
            self.edits.append(
                RepeatRows(self.node, position, self.rank(position), axis, value, samples.axis, samples.rows)
            )
