"""Verification compares what two runtimes agree on, and says what it leaves out."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from staged_onnx import parse, read
from torch import Tensor, nn

import heterps_compile
from heterps_compile.backends.comparable import find_comparable
from heterps_compile.backends.find import find_backend
from heterps_compile.errors import BackendError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.frontends.torch_fx import import_torch

RNG = np.random.default_rng(0)

DROPPED = """g (float[8, 16] x) => (float[8, 16] y) <float ratio = {0.5}, bool training = {1}> {
    h = MatMul(x, x16)
    d = Dropout(h, ratio, training)
    y = MatMul(d, x16)
}"""
NOISY = """g (float[8, 16] x) => (float[8, 16] y, float[8, 16] h) {
    h = Relu(x)
    n = RandomNormalLike(h)
    y = Add(h, n)
}"""


def with_weight(text: str, name: str = "x16") -> onnx.ModelProto:
    model = parse(text)
    weight = RNG.standard_normal((16, 16), dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_a_model_that_drops_at_random_is_verified_with_nothing_dropped_and_drops_when_it_runs(backend: str) -> None:
    compiled = heterps_compile.compile(with_weight(DROPPED), backend=backend, method="greedy", min_stages=2)
    found = compiled.plan.verification
    assert found is not None
    assert (found.outputs, found.max_rel < 1e-6) == (1, True)
    assert any(note.startswith("verified with nothing dropped") for note in compiled.plan.notes)
    x = np.ones((8, 16), np.float32)
    first, second = (torch.as_tensor(compiled.run(x=x)[0]) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_an_output_that_is_drawn_at_random_is_left_out_and_named(backend: str) -> None:
    compiled = heterps_compile.compile(parse(NOISY), backend=backend, method="greedy")
    assert compiled.plan.verification is not None
    assert compiled.plan.verification.outputs == 1
    assert "not verified, since their numbers are drawn at random: outputs 'y'" in compiled.plan.notes


def test_a_model_of_which_all_is_drawn_is_not_called_verified() -> None:
    compiled = heterps_compile.compile(parse(NOISY.replace(", float[8, 16] h)", ")")), method="greedy")
    assert compiled.plan.verification is None
    assert any(note.startswith("not verified") for note in compiled.plan.notes)


def test_a_dropout_that_a_constant_turns_off_draws_nothing() -> None:
    graph = import_onnx(with_weight(DROPPED.replace("training = {1}", "training = {0}")))
    assert graph.source.notes == ()
    assert find_comparable(graph, find_backend("torch").capabilities).graph is graph


def test_what_is_compared_has_the_nodes_of_the_model_which_stays_as_it_is() -> None:
    graph = import_onnx(with_weight(DROPPED))
    compared = find_comparable(graph, find_backend("onnxruntime").capabilities).graph
    inputs = [[len(node.inputs) for node in g.source.model.graph] for g in (graph, compared)]
    assert inputs == [[2, 3, 2], [2, 2, 2]]


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden: Tensor = self.layer(x)
        return hidden, hidden + torch.rand_like(hidden)


def test_pytorch_draws_what_the_whole_model_draws_and_is_compared_in_all() -> None:
    graph = import_torch(Noisy(), (torch.randn(2, 4),))
    assert find_comparable(graph, find_backend("torch").capabilities).outputs == graph.outputs
    assert find_comparable(graph, find_backend("onnxruntime").capabilities).outputs == graph.outputs[:1]


class Differs(nn.Module):
    """Looks up places and their differences, which numbers drawn at random would make negative."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.widths = nn.Embedding(9, 2), nn.Embedding(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.places(x[:, 0]) + self.widths(x[:, 1] - x[:, 0])


ORDERED = torch.tensor([[0, 3], [0, 2], [4, 8], [1, 1]])


def test_whole_numbers_that_a_model_counts_with_are_the_examples() -> None:
    found = heterps_compile.compile(Differs(), (ORDERED,), method="greedy").plan.verification
    assert found is not None
    assert found.max_rel == 0


def test_a_model_that_does_not_take_what_it_is_given_says_so() -> None:
    graph = import_torch(Differs(), (ORDERED,))
    (name,) = graph.inputs
    with pytest.raises(BackendError, match=r"'Differs'.*range.*verify=False"):
        find_backend("torch").reference(graph)({name: ORDERED.flip(1) - 1})


def weighted(dtype: Any, number: int, layers: int = 4) -> onnx.ModelProto:
    """Return a model of a data type: products and activations, to be cut between them."""
    names = ["x", *(f"h{i}" for i in range(layers))]
    nodes, weights = [], []
    for i in range(layers):
        weight = (RNG.standard_normal((16, 16)) / 4).astype(dtype)
        weights.append(ir.to_proto(ir.tensor(weight, ir.DataType(number), name=f"w{i}")))
        nodes += [helper.make_node("MatMul", [names[i], f"w{i}"], [f"m{i}"])]
        nodes += [helper.make_node("Tanh", [f"m{i}"], [names[i + 1]])]
    ends = [helper.make_tensor_value_info(name, number, [8, 16]) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("backend", ["onnxruntime", "torch", "jax"])
def test_half_precision_is_verified_to_its_own_rounding(backend: str) -> None:
    model = weighted(np.float16, TensorProto.FLOAT16)
    found = heterps_compile.compile(model, backend=backend, method="greedy", min_stages=3).plan.verification
    assert found is not None
    assert found.max_rel <= found.tolerance == 8 * 2.0**-10


@pytest.mark.parametrize(
    ("text", "rounding"),
    [
        ("g (float[2, 4] x) => (float[2, 4] y) { y = Relu(x) }", 0.0),
        ("g (float16[2, 4] x) => (float[2, 4] y) { h = Relu(x)  y = Cast<to = 1>(h) }", 8 * 2.0**-10),
        ("g (uint8[2, 4] x) => (uint8[2, 4] y) { y = Add(x, x) }", 0.0),
        (
            "g (float[2, 4] x) => (float[2, 4] y) <float s = {0.1}, uint8 z = {128}> "
            "{ q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }",
            8 * 2.0**-8,
        ),
    ],
)
def test_rounding_is_that_of_the_coarsest_node(text: str, rounding: float) -> None:
    assert find_comparable(read(text), find_backend("onnxruntime").capabilities).rounding == rounding


def test_bfloat16_rounds_to_eight_bits() -> None:
    graph = import_onnx(weighted(ml_dtypes.bfloat16, TensorProto.BFLOAT16, layers=1))
    assert find_comparable(graph, find_backend("torch").capabilities).rounding == 8 * 2.0**-7
