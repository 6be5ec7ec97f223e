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

BRANCH = """g (float[2, 4] x, bool c) => (float[2, 4] y) {
    a = Relu(x)
    y = If (c) <
        then_branch = t () => (float[2, 4] o) { o = Neg(a) },
        else_branch = e () => (float[2, 4] o) { o = Abs(a) }
    >
}"""
LOOP = """g (float[2, 4] x, int64 n, bool c) => (float[2, 4] y) {
    a = Relu(x)
    y = Loop (n, c, a) <body = b (int64 i, bool ci, float[2, 4] v) => (bool co, float[2, 4] w) {
        co = Identity(ci)
        w = Neg(v)
    }>
}"""
SCAN = """g (float[2, 4] x) => (float[4] s, float[2, 4] y) <float[4] z = {0, 0, 0, 0}> {
    s, y = Scan <num_scan_inputs = 1, body = b (float[4] acc, float[4] v) => (float[4] o, float[4] p) {
        o = Add(acc, v)
        p = Identity(o)
    }> (z, x)
}"""
LISTED = """g (float[2, 4] x) => (float[4, 4] y) {
    s = SequenceConstruct(x, x)
    y = ConcatFromSequence<axis = 0>(s)
}"""
COUNTED = "g (float[2, 4] x) => (int64[2, n] y) { a = Relu(x)  y = NonZero(a) }"
DROPPED = "g (float[2, 4] x) => (float[2, 4] y) <float r = {0.5}, bool t = {1}> { y = Dropout(x, r, t) }"


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize(
    ("text", "op", "reason"),
    [
        (BRANCH, "If", "has no control flow"),
        (LOOP, "Loop", "has no control flow"),
        (SCAN, "Scan", "has no control flow"),
        (LISTED, "SequenceConstruct", "has tensors alone, no sequences and optional values"),
    ],
)
def test_control_flow_and_sequences_are_refused_by_node_with_the_way_out(
    backend: str, text: str, op: str, reason: str
) -> None:
    with pytest.raises(UnsupportedOpError, match=rf"node '{op}_\d' is {op} .*{reason}; .*support it: onnxruntime"):
        refuse_unsupported(find_backend(backend), read(text))


@pytest.mark.parametrize("text", [BRANCH, LOOP, SCAN, LISTED])
def test_onnx_runtime_takes_them(text: str) -> None:
    refuse_unsupported(find_backend("onnxruntime"), read(text))


def test_jax_refuses_a_shape_that_depends_on_elements_of_what_is_computed() -> None:
    with pytest.raises(
        UnsupportedOpError,
        match=r"node 'NonZero_0' .* takes a shape or axis from what node 'Relu_0' \(Relu\) computes, and jax must know "
        r"shapes before it runs; backends that support it: onnxruntime, torch",
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
    with pytest.raises(UnsupportedOpError, match=r"node 'Dropout_0' .* drops at random, and an ONNX model has no key"):
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
        (torch.linalg.inv, r"linalg_inv' is aten.linalg_inv.default .*: ONNX has nothing for aten.linalg_inv_ex"),
        (lambda h: h.kthvalue(2)[1], r"kthvalue' is .*: ONNX has nothing for aten.kthvalue.default"),
        (torch.special.i0, r"special_i0' is .*: ONNX has nothing for prims.bessel_i0"),
    ],
)
def test_a_node_of_pytorch_that_onnx_has_nothing_for_is_named(
    backend: str, function: Callable[[Tensor], Tensor], reason: str
) -> None:
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")
    graph = import_torch(Solves(function), (torch.randn(4, 4),))
    with pytest.raises(UnsupportedOpError, match=rf"{reason}.*; backends that support it: torch"):
        refuse_unsupported(find_backend(backend), graph)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of torch.cond's own tracing
def test_control_flow_of_a_pytorch_model_is_refused_by_jax_alone() -> None:
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")

    def either(h: Tensor) -> Tensor:
        return torch.cond(h.sum() > 0, lambda v: v.tanh(), lambda v: v * 2, (h,))

    graph = import_torch(Solves(either), (torch.randn(4, 4),))
    refuse_unsupported(find_backend("onnxruntime"), graph)
    with pytest.raises(UnsupportedOpError, match=r"the jax backend has no control flow; .*: onnxruntime, torch"):
        refuse_unsupported(find_backend("jax"), graph)


def test_real_models_are_not_refused() -> None:
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")
    for build in (bert, gpt2, vit):
        module, inputs, keywords = build()
        graph = import_torch(module.eval(), inputs, keywords)
        for backend in ("onnxruntime", "jax"):
            refuse_unsupported(find_backend(backend), graph)
