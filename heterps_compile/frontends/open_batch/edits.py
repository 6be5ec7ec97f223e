"""Changes to an ONNX model that leave its results at the batch it fixes as they are, and hold at any other.

They are collected while the rules look at a model (:mod:`.rules`), and made when all of it has passed.

Left out: which change is right where.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from heterps_compile.frontends.onnx_names import free_name

_AXES_INPUT = 13  # the opset from which Unsqueeze takes axes as an input
_SHAPE_SLICES = 15  # the opset from which Shape gives a part of the shape


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a graph has, so that new ones differ: of values, nodes and initialisers."""

    graph: ir.Graph
    taken: set[str]
    opset: int

    @classmethod
    def of(cls, graph: ir.Graph, opset: int) -> "Names":
        """Return those of a graph."""
        values = [
            *graph.inputs,
            *graph.initializers.values(),
            *(out for node in graph.all_nodes() for out in node.outputs),
        ]
        nodes = [node.name for node in graph if node.name]
        return cls(graph, {value.name for value in values if value.name} | set(nodes), opset)

    def constant(self, wanted: str, array: NDArray[Any]) -> ir.Value:
        """Return a new initialiser."""
        name = free_name(wanted, self.taken)
        tensor = ir.Tensor(array, name=name)
        value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
        self.graph.register_initializer(value)
        return value

    def before(self, node: ir.Node, op: str, inputs: Sequence[ir.Value], **attributes: Any) -> ir.Value:
        """Put a new node in front of one; return what it makes."""
        made = ir.node(op, list(inputs), attributes, num_outputs=1)
        made.name = free_name(f"{node.name}/{op}", self.taken)
        made.outputs[0].name = free_name(f"{node.name}/{op}:0", self.taken)
        self.graph.insert_before(node, made)
        return made.outputs[0]

    def length(self, node: ir.Node, of: ir.Value, axis: int) -> ir.Value:
        """Return the length of an axis, as an array of one number, computed in front of a node."""
        if self.opset >= _SHAPE_SLICES:
            return self.before(node, "Shape", [of], start=axis, end=axis + 1)
        index = self.constant(f"{node.name}/axis", np.array([axis], np.int64))
        return self.before(node, "Gather", [self.before(node, "Shape", [of]), index], axis=0)


Edit = Callable[[Names], None]


@dataclass(frozen=True, slots=True)
class SetInput:
    """Let an input of a node be a constant."""

    node: ir.Node
    position: int
    array: NDArray[Any]

    def __call__(self, names: Names) -> None:
        """Change the node."""
        old = self.node.inputs[self.position]
        wanted = f"{self.node.name}/{'input' if old is None or not old.name else old.name}"
        self.node.replace_input_with(self.position, names.constant(wanted, self.array))


@dataclass(frozen=True, slots=True)
class SetLength:
    """Let an input of a node be a constant, but for one number, which is the length of an axis of a value."""

    node: ir.Node
    position: int
    array: NDArray[Any]
    place: int
    like: ir.Value
    axis: int

    def __call__(self, names: Names) -> None:
        """Change the node."""
        numbers = self.array.astype(np.int64)
        parts = [names.length(self.node, self.like, self.axis)]
        if self.place:
            parts.insert(0, names.constant(f"{self.node.name}/before", numbers[: self.place]))
        if self.place + 1 < numbers.size:
            parts.append(names.constant(f"{self.node.name}/after", numbers[self.place + 1 :]))
        made = names.before(self.node, "Concat", parts, axis=0) if len(parts) > 1 else parts[0]
        self.node.replace_input_with(self.position, made)


@dataclass(frozen=True, slots=True)
class Widen:
    """Repeat an input of a node, which has one row for all samples, once for each of them.

    Attributes:
        rank: Of the input.
        axis: Of the input, of length 1.
        like: Has the samples along ``like_axis``.
    """

    node: ir.Node
    position: int
    rank: int
    axis: int
    like: ir.Value
    like_axis: int

    def __call__(self, names: Names) -> None:
        """Put an Expand in front of the node."""
        value = self.node.inputs[self.position]
        assert value is not None  # noqa: S101 - only inputs that are given are widened
        length = names.length(self.node, self.like, self.like_axis)
        shape = _among_ones(names, self.node, length, rank=self.rank, axis=self.axis)
        self.node.replace_input_with(self.position, names.before(self.node, "Expand", [value, shape]))


def _among_ones(names: Names, node: ir.Node, number: ir.Value, *, rank: int, axis: int) -> ir.Value:
    """Return a vector of ``rank`` ones, made before a node, but for a computed number at one place."""
    ones = [np.ones(axis, np.int64), np.ones(rank - axis - 1, np.int64)]
    parts = [names.constant(f"{node.name}/ones", one) for one in ones if one.size]
    parts.insert(1 if ones[0].size else 0, number)
    return names.before(node, "Concat", parts, axis=0) if len(parts) > 1 else number


@dataclass(frozen=True, slots=True)
class RepeatRows:
    """Repeat an input of a node, which has the rows of one sample, once for each of them.

    Attributes:
        rank: Of the input.
        axis: Of the input, of length ``rows``.
        like: Has ``rows`` of each sample along ``like_axis``.
    """

    node: ir.Node
    position: int
    rank: int
    axis: int
    like: ir.Value
    like_axis: int
    rows: int

    def __call__(self, names: Names) -> None:
        """Put a Tile in front of the node."""
        value = self.node.inputs[self.position]
        assert value is not None  # noqa: S101 - only inputs that are given are repeated
        rows = names.constant(f"{self.node.name}/rows", np.array([self.rows], np.int64))
        count = names.before(self.node, "Div", [names.length(self.node, self.like, self.like_axis), rows])
        repeats = _among_ones(names, self.node, count, rank=self.rank, axis=self.axis)
        self.node.replace_input_with(self.position, names.before(self.node, "Tile", [value, repeats]))


@dataclass(frozen=True, slots=True)
class GatherInEach:
    """Let a Gather along rows of all samples look up the same rows in each.

    Attributes:
        before, rows, behind: The shape of its data at one sample, apart at the axis that it looks up along.
        places: What it looks up in the rows of one sample.
    """

    node: ir.Node
    before: Sequence[int]
    rows: int
    behind: Sequence[int]
    places: NDArray[Any]

    def __call__(self, names: Names) -> None:
        """Put a Reshape and a Gather in front of the node, which becomes a Reshape."""
        data, axis = self.node.inputs[0], len(self.before)
        assert data is not None  # noqa: S101 - a Gather has data
        apart = np.array([*self.before, -1, self.rows, *self.behind], np.int64)
        rows = names.before(self.node, "Reshape", [data, names.constant(f"{self.node.name}/apart", apart)])
        places = names.constant(f"{self.node.name}/places", self.places)
        self.node.replace_input_with(0, names.before(self.node, "Gather", [rows, places], axis=axis + 1))
        AsReshape(self.node, [*self.before, -1, *self.places.shape[1:], *self.behind])(names)


@dataclass(frozen=True, slots=True)
class GatherAtEach:
    """Let a Gather in rows of all samples, at places of each, look up in the rows of the same sample.

    Attributes:
        rows: Of each sample.
        behind: The shape of a row.
    """

    node: ir.Node
    rows: int
    behind: Sequence[int]

    def __call__(self, names: Names) -> None:
        """Let the node be a GatherND."""
        data, places = self.node.inputs
        assert data is not None and places is not None  # noqa: S101, PT018 - a Gather has both
        apart = names.constant(f"{self.node.name}/apart", np.array([-1, self.rows, *self.behind], np.int64))
        last = names.constant(f"{self.node.name}/last", np.array([-1], np.int64))
        wide = names.before(self.node, "Cast", [places], to=ir.DataType.INT64.value)
        if names.opset >= _AXES_INPUT:
            wide = names.before(self.node, "Unsqueeze", [wide, last])
        else:
            wide = names.before(self.node, "Unsqueeze", [wide], axes=[-1])
        self.node.replace_input_with(0, names.before(self.node, "Reshape", [data, apart]))
        self.node.replace_input_with(1, wide)
        self.node.op_type = "GatherND"
        self.node.attributes.clear()
        self.node.attributes["batch_dims"] = ir.AttrInt64("batch_dims", 1)


@dataclass(frozen=True, slots=True)
class DropFirst:
    """Drop the first number of every row of an input of a node."""

    node: ir.Node
    position: int

    def __call__(self, names: Names) -> None:
        """Put a Slice in front of the node."""
        value, wanted = self.node.inputs[self.position], self.node.name
        assert value is not None  # noqa: S101 - only inputs that are given are cut
        numbers = {"starts": 1, "ends": np.iinfo(np.int64).max, "axes": -1}
        cut = [names.constant(f"{wanted}/{what}", np.array([number], np.int64)) for what, number in numbers.items()]
        self.node.replace_input_with(self.position, names.before(self.node, "Slice", [value, *cut]))


@dataclass(frozen=True, slots=True)
class CountSamples:
    """Let the first coordinate of constant places, 0 for the one sample there is, be the number of each sample.

    Attributes:
        places: The indices of a ScatterND, of which the first axis is of length 1.
        like: Has the samples along ``like_axis``.
    """

    node: ir.Node
    places: NDArray[Any]
    like: ir.Value
    like_axis: int

    def __call__(self, names: Names) -> None:
        """Put a Range in front of the node."""
        block, wanted = self.places.shape[:-1], f"{self.node.name}/places"
        length = names.length(self.node, self.like, self.like_axis)
        scalar = names.before(self.node, "Squeeze", [length])
        zero, one = (names.constant(f"{wanted}_{n}", np.array(n, np.int64)) for n in (0, 1))
        column = names.constant(f"{wanted}_column", np.array([-1, *[1] * len(block)], np.int64))
        numbers = names.before(self.node, "Reshape", [names.before(self.node, "Range", [zero, scalar, one]), column])
        inner = names.constant(f"{wanted}_inner", np.array([*block[1:], 1], np.int64))
        sizes = names.before(self.node, "Concat", [length, inner], axis=0)
        rest = names.constant(f"{wanted}_rest", self.places[..., 1:].astype(np.int64))
        parts = [names.before(self.node, "Expand", [part, sizes]) for part in (numbers, rest)]
        self.node.replace_input_with(1, names.before(self.node, "Concat", parts, axis=-1))


@dataclass(frozen=True, slots=True)
class Fold:
    """Let what a node makes be a constant."""

    node: ir.Node
    array: NDArray[Any]

    def __call__(self, names: Names) -> None:
        """Hand the constant to all who read it; the node stays, read by nobody."""
        made = names.constant(f"{self.node.name}/fixed", self.array)
        for node, position in list(self.node.outputs[0].uses()):
            node.replace_input_with(position, made)


@dataclass(frozen=True, slots=True)
class AsReshape:
    """Let a node be a Reshape of its first input to a constant shape."""

    node: ir.Node
    shape: Sequence[int]

    def __call__(self, names: Names) -> None:
        """Change the node."""
        shape = names.constant(f"{self.node.name}/shape", np.array(self.shape, np.int64))
        self.node.op_type = "Reshape"
        self.node.attributes.clear()
        self.node.resize_inputs(2)
        self.node.replace_input_with(1, shape)


@dataclass(frozen=True, slots=True)
class SetAttribute:
    """Give a node another attribute."""

    node: ir.Node
    name: str
    numbers: int | Sequence[int]

    def __call__(self, names: Names) -> None:
        """Change the node."""
        if isinstance(self.numbers, int):
            self.node.attributes[self.name] = ir.AttrInt64(self.name, self.numbers)
        else:
            self.node.attributes[self.name] = ir.AttrInt64s(self.name, list(self.numbers))
