"""Random graphs of ops that keep samples apart and of ops that mix them: what is opened is equal sample by sample.

The oracle is the model as it was, on the samples one by one. What is refused names a node or an output.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from staged_onnx import BACKEND

from heterps_compile.errors import InputError
from heterps_compile.frontends.onnx import import_onnx

Pick = Callable[[Sequence[Any]], Any]
STEPS, MOST, RANK = 5, 3000, 5  # of a graph, elements and axes of its values
FACTOR = 3  # the opened batch over the fixed one


def other_shape(pick: Pick, shape: Sequence[int]) -> list[int]:
    """Return another shape for as many elements: axes joined, split, and of length 1 added or dropped."""
    made = list(shape)
    for _ in range(pick([1, 2, 3])):
        axis = pick(range(len(made) + 1))
        move = pick(["join", "split", "add", "drop"])
        if move == "join" and axis + 1 < len(made):
            made[axis : axis + 2] = [made[axis] * made[axis + 1]]
        elif move == "split" and axis < len(made):
            factor = pick([n for n in (1, 2, 3) if made[axis] % n == 0])
            made[axis : axis + 1] = [factor, made[axis] // factor]
        elif move == "add" and len(made) < RANK:
            made.insert(axis, 1)
        elif move == "drop" and axis < len(made) and made[axis] == 1 and len(made) > 1:
            del made[axis]
    return made


class OnnxGraph:
    """Builds an ONNX model step by step; of every value its array at the fixed batch is known."""

    def __init__(self, pick: Pick) -> None:
        self.pick, self.nodes, self.weights = pick, [], {}
        self.rng = np.random.default_rng(0)
        fixed = pick([1, 1, 1, 2])
        shape = pick([(fixed, 4, 6), (fixed, 6), (fixed, 2, 2, 3), (fixed, 1, 4)])
        self.x = self.rng.standard_normal(shape).astype(np.float32)
        self.values: dict[str, Any] = {"x": self.x}

    def constant(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(array, None if np.asarray(array).dtype == np.float32 else np.int64)
        return name

    def floats(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape).astype(np.float32))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        node = helper.make_node(op, list(inputs), [f"v{len(self.nodes)}"], f"n{len(self.nodes)}", **attributes)
        self.nodes.append(node)
        known = {**self.values, **self.weights}
        read = {name: known[name] for name in inputs}
        (made,) = ReferenceEvaluator(node, opsets={"": 18}).run(None, read)
        self.values[node.output[0]] = np.asarray(made)
        return str(node.output[0])

    def step(self) -> None:
        """Add what one of the moves adds, if it can be done."""
        pick = self.pick
        name = pick([n for n, v in self.values.items() if v.dtype == np.float32 and v.ndim])
        shape = self.values[name].shape
        axis, rank = pick(range(len(shape))), len(shape)
        places = self.rng.integers(0, shape[axis], pick([(), (1,), (2,), (1, 1, 3)]))
        to = other_shape(pick, shape)
        open_ = [-1 if i == axis else n for i, n in enumerate(to)]
        one, block, row = self.floats(1), pick([(1,), (1, 1, 2), (2,)]), self.floats(1, 1, *shape[2:])
        turned = [*range(rank - 2), *range(max(rank - 2, 0), rank)[::-1]]
        cut = [self.constant([n]) for n in (pick([0, 0, 1]), pick([shape[axis], 99]), axis)]
        first = [1 if i == axis else n for i, n in enumerate(shape)]
        wide = [pick([n, 2 * n]) if n == 1 else pick([n, 1]) for n in shape]
        kept = pick([0, 1])
        moves: list[Callable[[], object]] = [
            *[lambda: self.add("Reshape", name, self.constant(pick([to, open_])))] * 3,
            *[lambda: self.add("Transpose", name, perm=self.order(rank))] * 2,
            lambda: self.add("Reshape", name, self.add("Concat", self.size(name, axis), self.constant([-1]), axis=0)),
            lambda: self.add("Flatten", name, axis=axis),
            lambda: shape[axis] == 1 < rank and self.add("Squeeze", name, self.constant([axis])),
            lambda: rank < RANK and self.add("Unsqueeze", name, self.constant([axis + pick([0, 1])])),
            lambda: self.add(pick(["Add", "Mul", "Sub"]), *self.pair(name, shape)),
            lambda: self.add("MatMul", name, self.floats(*shape[: pick([0, max(rank - 2, 0)])], shape[-1], 3)),
            lambda: rank > 1 and self.add("MatMul", self.floats(2, shape[-2]), name),
            lambda: rank > 1 and self.add("MatMul", name, self.add("Transpose", name, perm=turned)),
            lambda: rank == 2 and self.add("Gemm", name, self.floats(shape[1], 3), self.floats(1, 3)),
            lambda: rank == 2 and self.add("Gemm", name, self.floats(shape[0], 3), transA=1),
            lambda: self.add(pick(["ReduceMean", "ReduceMax"]), name, self.constant([axis]), keepdims=kept),
            lambda: self.add("Softmax", name, axis=axis),
            lambda: self.add("CumSum", name, self.constant(axis)),
            lambda: self.add("LayerNormalization", name, self.floats(shape[-1]), axis=-1),
            lambda: self.add("Concat", name, pick([name, self.floats(*shape)]), axis=axis),
            lambda: self.add("Concat", self.floats(*first), name, axis=axis),
            lambda: self.add("Slice", name, *cut),
            lambda: self.add("Gather", name, self.constant(places), axis=axis),
            lambda: self.add("GatherND", name, self.entries(shape[: axis + 1], block)),
            lambda: rank > 1 and self.add("ScatterND", name, self.entries(shape[:2], [1, 1]), row),
            lambda: self.add("Expand", name, self.constant(wide)),
            lambda: self.add("Tile", name, self.constant([pick([1, 1, 2]) for _ in shape])),
            lambda: self.add("Pad", name, self.constant([int(i == axis) for i in range(rank)] + [0] * rank)),
            lambda: self.add("Where", self.add("Greater", name, one), name, self.floats(*shape)),
        ]  # fmt: skip
        pick(moves)()
        self.values = {n: v for n, v in self.values.items() if 0 < v.size < MOST and v.ndim <= RANK}

    def size(self, name: str, axis: int) -> str:
        return self.add("Gather", self.add("Shape", name), self.constant([axis]), axis=0)

    def entries(self, shape: Sequence[int], block: Sequence[int]) -> str:
        return self.constant(np.stack([self.rng.integers(0, n, block) for n in shape], -1))

    def order(self, rank: int) -> list[int]:
        left = list(range(rank))
        return [left.pop(self.pick(range(len(left)))) for _ in range(rank)]

    def pair(self, name: str, shape: Sequence[int]) -> list[str]:
        others = [n for n, v in self.values.items() if v.dtype == np.float32 and fit(v.shape, shape)]
        drawn = self.floats(*(self.pick([1, n]) for n in shape[self.pick(range(len(shape))) :]))
        return [name, self.pick([*others, drawn])]

    def model(self) -> onnx.ModelProto:
        last = list(self.values)[-1]
        types = {np.dtype(np.float32): 1, np.dtype(np.int64): 7, np.dtype(bool): 9}
        made = helper.make_tensor_value_info(last, types[self.values[last].dtype], None)
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", 1, self.x.shape)],
            [made],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def fit(one: Sequence[int], other: Sequence[int]) -> bool:
    """Say whether two shapes are broadcast to one that is small."""
    try:
        return prod(np.broadcast_shapes(one, other)) < MOST  # type: ignore[arg-type]
    except ValueError:
        return False


def onnx_model(pick: Pick) -> onnx.ModelProto:
    graph = OnnxGraph(pick)
    graph.add("Relu", "x")
    for _ in range(pick(range(1, STEPS + 1))):
        graph.step()
    return graph.model()


def check_onnx(model: onnx.ModelProto) -> bool:
    """Say whether a model is opened; then it is equal sample by sample."""
    fixed = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    batch = FACTOR * fixed
    try:
        graph = import_onnx(model, batch=batch)
    except InputError as error:
        assert_named(str(error))
        return False
    assert graph.opened is not None
    axes = graph.opened.axes
    inputs = BACKEND.example_inputs(graph, 0)
    (whole,), alone = BACKEND.reference(graph)(inputs), BACKEND.reference(graph.opened.original())
    (name,) = graph.outputs
    for first in range(0, batch, fixed):
        part = range(first, first + fixed)
        (theirs,) = alone({n: np.take(v, part, axes[n]) for n, v in inputs.items()})
        np.testing.assert_allclose(np.take(whole, part, axes[name]), theirs, rtol=1e-3, atol=1e-4)
    return True


def assert_named(error: str) -> None:
    why = error.split("cannot be opened: ")[1]
    assert why.startswith(("node '", "output '", "its outputs: none")), error


@settings(max_examples=25)
@given(st.data())
def test_an_opened_onnx_model_is_equal_sample_by_sample(data: st.DataObject) -> None:
    check_onnx(onnx_model(lambda options: data.draw(st.sampled_from(list(options)))))
