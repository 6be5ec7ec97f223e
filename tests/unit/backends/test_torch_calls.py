"""Ops and constants as source: what is written is the op and the constant that was meant."""

import copy
import math
import operator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn

from heterps_compile.backends.torch.calls import WRITTEN_AS, can_write, write_call
from heterps_compile.backends.torch.literals import literal

X = torch.linspace(-2, 2, 24).reshape(2, 3, 4) + 0.1
POSITIVE, MATRIX, IDS = X.abs() + 0.5, X[0], torch.tensor([[0, 2], [1, 1]])
IMAGE, WEIGHT = torch.randn(1, 3, 5, 5), torch.randn(2, 3, 3, 3)

GATES = [torch.randn(rows, *more) for rows in (6, 8) for more in ((4,), (2,), (), ())]  # of a GRU, of an LSTM

# Arguments of every op that is not written by its full name.
SAMPLES: dict[str, tuple[Any, ...]] = {
    "addmm.default": (MATRIX[0, :3], MATRIX, MATRIX.t()),
    "batch_norm.default": (IMAGE, torch.ones(3), None, torch.zeros(3), torch.ones(3), False, 0.1, 1e-5, False),
    "bmm.default": (X, X.transpose(1, 2)),
    "clamp.default": (X, None, 0.5),
    "conv1d.default": (X, WEIGHT[:, :, 0], None, [2], [1]),
    "cumsum.default": (X, -1),
    "dropout.default": (X, 0.5, False),
    "embedding.default": (MATRIX, IDS, 1),
    "exp.default": (X,),
    "gelu.default": (X,),
    "group_norm.default": (IMAGE, 3, None, None, 1e-3),
    "layer_norm.default": (X, [4], torch.ones(4), None, 1e-3),
    "linear.default": (X, torch.randn(5, 4)),
    "log.default": (POSITIVE,),
    "logsumexp.default": (X, [1]),
    "matmul.default": (X, MATRIX.t()),
    "mm.default": (MATRIX, MATRIX.t()),
    "neg.default": (X,),
    "one_hot.default": (IDS, 3),
    "pad.default": (X, [1, 2], "constant", 3.0),
    "relu.default": (X,),
    "relu_.default": (X,),
    "rsqrt.default": (POSITIVE,),
    "scaled_dot_product_attention.default": (X, X, X, None, 0.0, True),
    "sigmoid.default": (X,),
    "silu.default": (X,),
    "sqrt.default": (POSITIVE,),
    "square.default": (X,),
    "tanh.default": (X,),
    "abs.default": (X,),
    "avg_pool1d.default": (X, [2], [1], [1], True, False),
    "avg_pool2d.default": (IMAGE, [2, 2], [1, 1], [1, 0], True, False),
    "avg_pool3d.default": (IMAGE, [2, 2, 2], [1, 1, 1]),
    "ceil.default": (X,),
    "celu.default": (X, 0.5),
    "cos.default": (X,),
    "elu.default": (X, 0.5),
    "erf.default": (X,),
    "floor.default": (X,),
    "hardswish.default": (X,),
    "instance_norm.default": (IMAGE, torch.ones(3), None, None, None, True, 0.1, 1e-3, False),
    "isnan.default": (X,),
    "leaky_relu.default": (X, 0.2),
    "logical_and.default": (X > 0, X < 1),
    "logical_not.default": (X > 0,),
    "logical_or.default": (X > 1, X < 0),
    "max_pool1d.default": (X, [2], [1], [1]),
    "max_pool2d.default": (IMAGE, [2, 2], [1, 1], [1, 1], [1, 2], True),
    "max_pool3d.default": (IMAGE, [2, 2, 2]),
    "maximum.default": (X, POSITIVE),
    "minimum.default": (X, POSITIVE),
    "mish.default": (X,),
    "reciprocal.default": (POSITIVE,),
    "round.default": (X,),
    "sign.default": (X,),
    "sin.default": (X,),
    "einsum.default": ("bij,bkj->bik", [X, X]),
    "gather.default": (MATRIX, 1, IDS),
    "index_select.default": (X, 1, IDS[0]),
    "squeeze.dims": (X[:1, :1], [0, 1]),
    "lt.Tensor": (X, POSITIVE),
    "gt.Tensor": (X, POSITIVE),
    "cat.default": ([X, X], 1),
    "conv2d.default": (IMAGE, WEIGHT, None, [2, 1], [1, 0]),
    "softmax.int": (X, -1, torch.float64),
    "log_softmax.int": (X, 1),
    "stack.default": ([X, X], -1),
    "where.self": (X > 0, X, POSITIVE),
    "where.ScalarOther": (X > 0, X, 2.0),
    "add_.Tensor": (X, 1),
    "chunk.default": (X, 2, 2),
    "clone.default": (X,),
    "contiguous.default": (X.transpose(0, 1),),
    "detach.default": (X,),
    "expand.default": (X[:, :1], [2, 3, 4]),
    "flatten.using_ints": (X, 1, -1),
    "masked_fill.Scalar": (X, X > 0, float("-inf")),
    "mean.dim": (X, [0, 1], True),
    "permute.default": (X, [2, 0, 1]),
    "reshape.default": (X, [4, -1]),
    "select.int": (X, 1, -1),
    "split.Tensor": (X, 3, 2),
    "split_with_sizes.default": (X, [1, 3], 2),
    "squeeze.dim": (X[:1], 0),
    "sum.dim_IntList": (X, [0], True),
    "sym_size.int": (X, 2),
    "t.default": (MATRIX,),
    "to.device": (X, torch.device("cpu"), torch.float64),
    "to.dtype": (X, torch.int32),
    "transpose.int": (X, 0, -1),
    "unsqueeze.default": (X, -1),
    "view.default": (X, [6, 4]),
    "add.Tensor": (X, 2),
    "sub.Tensor": (X, -2.5),
    "mul.Tensor": (X, X),
    "div.Tensor": (X, 3),
    "pow.Tensor_Scalar": (X, -2),
    "eq.Tensor": (IDS, IDS.t()),
    "eq.Scalar": (IDS, 1),
    "ne.Scalar": (IDS, 1),
    "lt.Scalar": (X, 0),
    "le.Tensor": (X, POSITIVE),
    "gt.Scalar": (X, -0.5),
    "ge.Scalar": (X, 0.5),
    "__and__.Tensor": (IDS, IDS + 1),
    "adaptive_avg_pool1d.default": (X, [2]),
    "amax.default": (X, [1], True),
    "amin.default": (X, [0, 2]),
    "arange.default": (5,),
    "arange.start": (2, 5),
    "arange.start_step": (2, 9, 3),
    "argmax.default": (X, 1, True),
    "argsort.default": (X, 1, True),
    "baddbmm.default": (torch.ones(3), X, X.transpose(1, 2)),
    "bitwise_not.default": (IDS,),
    "copy_.default": (X, POSITIVE),
    "cumprod.default": (X, 1),
    "detach_.default": (X,),
    "diff.default": (X, 1, 0),
    "expand_as.default": (X[:1], X),
    "flip.default": (X, [0, 2]),
    "full.default": ([2, 3], 0.5),
    "full_like.default": (X, 2.5),
    "gru.input": (X, torch.zeros(1, 3, 2), list(GATES[:4]), True, 1, 0.0, False, False, False),
    "hardtanh.default": (X, -0.5, 1.5),
    "item.default": (X[0, 0, 0],),
    "le.Scalar": (X, 0.5),
    "logaddexp.default": (X, POSITIVE),
    "lstm.input": (X, [torch.zeros(1, 3, 2)] * 2, list(GATES[4:]), True, 1, 0.0, False, False, False),
    "mul_.Tensor": (X, 3),
    "new_ones.default": (X, [2, 2]),
    "new_zeros.default": (X, [3]),
    "ones.default": ([2, 3],),
    "ones_like.default": (X,),
    "pixel_shuffle.default": (torch.randn(1, 4, 2, 2), 2),
    "pixel_unshuffle.default": (torch.randn(1, 1, 4, 4), 2),
    "pow.Tensor_Tensor": (POSITIVE, X),
    "relu6.default": (X * 9,),
    "repeat.default": (X, [1, 2, 1]),
    "roll.default": (X, [1, -2], [0, 2]),
    "scatter_add.default": (MATRIX, 1, IDS, torch.ones(2, 2)),
    "softplus.default": (X, 2, 1),
    "take_along_dim.default": (MATRIX[:2], IDS, 1),
    "topk.default": (X, 2, 1, False),
    "type_as.default": (IDS, X),
    "unbind.int": (X, 1),
    "zeros.default": ([4],),
    "zeros_like.default": (X,),
}
SLICES = [(X, 1, 1, 3), (X, 0), (X, 2, None, -1, 2), (X, -1, 1), (X, 2, -3, 2**63 - 1), (X, -2, 0, 1)]


def node_of(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[fx.Node, dict[str, Any]]:
    """Return a node, its tensors as placeholders, and the tensors by the placeholders' names."""
    graph, tensors = fx.Graph(), {}

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            node = graph.placeholder(f"x{len(tensors)}")
            tensors[node.name] = value.clone()
            return node
        return [place(v) for v in value] if isinstance(value, list) else value

    return graph.call_function(target, tuple(map(place, args)), kwargs or {}), tensors


def evaluate(source: str, tensors: dict[str, Any]) -> Any:
    return eval(source, {"torch": torch, "F": nn.functional, **tensors})  # noqa: S307 - the test's own samples


def overload(name: str) -> Any:
    packet, kind = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), kind)


def test_there_is_a_sample_of_every_friendly_form() -> None:
    assert {f"aten.{name}" for name in SAMPLES} == set(WRITTEN_AS)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_friendly_form_gives_what_the_op_gives(name: str) -> None:
    node, tensors = node_of(overload(name), SAMPLES[name])
    source = write_call(node, lambda n: n.name)
    assert "torch.ops" not in source
    ours = evaluate(source, {key: value.clone() for key, value in tensors.items()})
    theirs = overload(name)(*copy.deepcopy(SAMPLES[name]))
    if type(ours) is not type(theirs):  # the op gives a list where torch has a tuple, with names or without
        ours, theirs = list(ours), list(theirs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_tensor_made_anew_is_written_without_what_goes_without_saying() -> None:
    kwargs = {"dtype": torch.float32, "device": torch.device("cpu"), "pin_memory": False}
    node, _ = node_of(torch.ops.aten.full.default, ([2, 3], 0.5), kwargs)
    written = write_call(node, lambda n: n.name)
    assert written == "torch.full([2, 3], 0.5, dtype=torch.float32, device=torch.device('cpu'))"


@pytest.mark.parametrize("args", SLICES)
def test_a_slice_is_written_with_brackets(args: tuple[Any, ...]) -> None:
    node, tensors = node_of(torch.ops.aten.slice.Tensor, args)
    source = write_call(node, lambda n: n.name)
    assert torch.equal(evaluate(source, tensors), torch.ops.aten.slice.Tensor(*args)), source
    assert source.startswith("x0[") == (len(args) < 2 or args[1] >= -1)


PICKS = [
    ([IDS[1]], "x0[x1]"),
    ([None, IDS], "x0[:, x1]"),
    ([IDS[1], None, IDS[0]], "x0[x1, :, x2]"),
    ([X > 0], "x0[x1]"),
]


@pytest.mark.parametrize(("picked", "expected"), [*PICKS, ([torch.tensor(1), torch.tensor(2)], "x0[x1, x2]")])
def test_an_index_is_written_with_brackets(picked: list[Any], expected: str) -> None:
    node, tensors = node_of(torch.ops.aten.index.Tensor, (X, picked))
    source = write_call(node, lambda n: n.name)
    assert source == expected
    assert torch.equal(evaluate(source, tensors), torch.ops.aten.index.Tensor(X, picked))


def test_what_has_no_friendly_form_goes_by_its_full_name() -> None:
    node, tensors = node_of(torch.ops.aten.add.Tensor, (X, X), {"alpha": 2})
    source = write_call(node, lambda n: n.name)
    assert source == "torch.ops.aten.add.Tensor(x0, x1, alpha=2)"
    assert torch.equal(evaluate(source, tensors), X + 2 * X)


def test_modules_methods_and_other_libraries_cannot_be_written() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    assert not can_write(graph.call_module("m", (x,)))
    assert not can_write(graph.call_method("relu", (x,)))
    assert not can_write(graph.call_function(torch.relu, (x,)))
    assert can_write(graph.call_function(torch.ops.aten.relu.default, (x,)))
    assert can_write(graph.call_function(operator.mul, (x, 2)))


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.complex_numbers(allow_nan=False),
    st.text(),
    st.sampled_from([torch.float32, torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]),
    st.sampled_from([torch.strided, torch.sparse_coo, torch.channels_last, torch.contiguous_format, ...]),
    st.sampled_from([torch.device("cpu"), torch.device("cuda:1"), torch.device("meta"), range(0, 6, 2)]),
)
constants = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(slice, inner, inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=2),
    ),
    max_leaves=6,
)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, slice):
        return same((one.start, one.stop, one.step), (other.start, other.stop, other.step))
    if isinstance(one, complex):
        return same((one.real, one.imag), (other.real, other.imag))
    if isinstance(one, float):
        return (one == other and math.copysign(1, one) == math.copysign(1, other)) or (
            math.isnan(one) and math.isnan(other)
        )
    return bool(one == other)


@settings(max_examples=40)
@given(constants)
def test_every_constant_reads_back_as_itself(value: Any) -> None:
    source = literal(value, str)
    assert source.isascii()
    assert "\n" not in source
    assert same(evaluate(source, {}), value)


def test_a_torch_size_is_written_as_a_tuple() -> None:
    assert literal(torch.Size([1, 2]), str) == "(1, 2)"


class Odd:
    pass


@pytest.mark.parametrize("value", [Odd(), torch.ones(1), {1, 2}, Odd])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="literal"):
        literal([value], str)
