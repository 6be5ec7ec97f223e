"""What a backend cannot run is told before the search, with the node, the reason and the backends that can."""

from collections.abc import Callable

import pytest
import torch
from staged_onnx import read
from torch import Tensor, nn
from torch_models import bert, gpt2, vit

from heterps_compile.backends.find import find_backend
from heterps_compile.backends.ops import refuse_unsupported
from heterps_compile.errors import UnsupportedOpError
from heterps_compile.frontends.torch_fx import import_torch

LOOP = """g (float[2, 4] x, int64 n, bool c) => (float[2, 4] y) {
    a = Relu(x)
    y = Loop (n, c, a) <body = b (int64 i, bool ci, float[2, 4] v) => (bool co, float[2, 4] w) {
        co = Identity(ci)
        s = SequenceConstruct(v, v)
        l = SequenceLength(s)
        f = Cast<to = 1>(l)
        w = Mul(v, f)
    }>
}"""
COLLECTS = """g (float[2, 4] x) => (float[2, 4] y, float[n, 2, 4] ys) <int64 m = {9}, bool c = {1}, float most = {9}> {
    a = Relu(x)
    y, ys = Loop (m, c, a) <body = b (int64 i, bool ci, float[2, 4] v) => (bool co, float[2, 4] w, float[2, 4] z) {
        w = Add(v, a)
        t = ReduceSum<keepdims = 0>(w)
        co = Less(t, most)
        z = Identity(w)
    }>
}"""
LISTED = """g (float[2, 4] x) => (float[4, 4] y) {
    s = SequenceConstruct(x, x)
    y = ConcatFromSequence<axis = 0>(s)
}"""
COUNTED = "g (float[2, 4] x) => (int64[2, n] y) { a = Relu(x)  y = NonZero(a) }"
DROPPED = "g (float[2, 4] x) => (float[2, 4] y) <float r = {0.5}, bool t = {1}> { y = Dropout(x, r, t) }"


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize(
    ("text", "node", "reason"),
    [
        (LISTED, r"'SequenceConstruct_\d'.*SequenceConstruct", "sequences"),
        (LOOP, "'s'.*SequenceConstruct", "sequences"),
    ],
)
def test_sequences_are_refused_by_node_with_the_way_out_in_subgraphs_too(
    backend: str, text: str, node: str, reason: str
) -> None:
    with pytest.raises(UnsupportedOpError, match=rf"{node}.*{reason}"):
        refuse_unsupported(find_backend(backend), read(text))


def test_a_loop_that_collects_as_many_values_as_its_own_values_say_is_refused_on_jax() -> None:
    with pytest.raises(UnsupportedOpError, match=r"Loop.*'Relu_0'"):
        refuse_unsupported(find_backend("jax"), read(COLLECTS))


@pytest.mark.parametrize("text", [LOOP, COLLECTS, LISTED])
def test_onnx_runtime_takes_them(text: str) -> None:
    refuse_unsupported(find_backend("onnxruntime"), read(text))


def test_jax_refuses_a_shape_that_depends_on_elements_of_what_is_computed() -> None:
    with pytest.raises(
        UnsupportedOpError,
        match=r"'NonZero_0'.*'Relu_0'.*Relu",
    ):
        refuse_unsupported(find_backend("jax"), read(COUNTED))
    refuse_unsupported(find_backend("torch"), read(COUNTED))


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2, 4] x) => (int64[2, n] y) { y = NonZero(x) }",  # x is a known input of the stage
        "g (float[2, 4] x, float[8] z) => (float[2, 4] y) { s = Shape(x)  a = Abs(s)  b = Neg(z)  y = Reshape(b, a) }",
    ],
)
def test_jax_takes_a_shape_that_is_known(text: str) -> None:
    refuse_unsupported(find_backend("jax"), read(text))


def test_jax_refuses_the_dropout_that_an_onnx_model_fixes_in_training() -> None:
    with pytest.raises(UnsupportedOpError, match=r"'Dropout_0'.*ONNX"):
        refuse_unsupported(find_backend("jax"), read(DROPPED))
    refuse_unsupported(find_backend("jax"), read(DROPPED.replace("{1}", "{0}")))


class Solves(nn.Module):
    """Two layers about a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(4, 4), nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


@pytest.mark.parametrize("backend", ["onnxruntime", "jax"])
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (torch.linalg.inv, "linalg_inv'.*aten.linalg_inv.default.*ONNX.*aten.linalg_inv_ex"),
        (lambda h: h.kthvalue(2)[1], "kthvalue'.*ONNX.*aten.kthvalue.default"),
        (torch.special.i0, "special_i0'.*ONNX.*prims.bessel_i0"),
    ],
)
def test_a_node_of_pytorch_that_onnx_has_nothing_for_is_named(
    backend: str, function: Callable[[Tensor], Tensor], reason: str
) -> None:
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")
    graph = import_torch(Solves(function), (torch.randn(4, 4),))
    with pytest.raises(UnsupportedOpError, match=reason):
        refuse_unsupported(find_backend(backend), graph)


def test_loops_of_a_pytorch_model_are_refused_by_jax() -> None:
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")

    def looped(h: Tensor) -> Tensor:
        halved: tuple[Tensor] = torch.while_loop(lambda v: v.sum() > 1, lambda v: (v / 2,), (h,))
        return halved[0]

    graph = import_torch(Solves(looped), (torch.ones(4, 4),))
    with pytest.raises(UnsupportedOpError, match="PyTorch's"):
        refuse_unsupported(find_backend("jax"), graph)


@pytest.mark.slow  # builds and exports three models
def test_real_models_are_not_refused() -> None:
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")
    for build in (bert, gpt2, vit):
        module, inputs, keywords = build()
        graph = import_torch(module.eval(), inputs, keywords)
        for backend in ("onnxruntime", "jax"):
            refuse_unsupported(find_backend(backend), graph)
