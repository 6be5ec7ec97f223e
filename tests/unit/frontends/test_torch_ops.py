"""The work of torch ops: as many FLOPs as PyTorch's own counter has, kinds by what the op does there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torch_models import REAL, Built

from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.frontends.torch_ops import OPS, Call, module_op, plain_name
from heterps_compile.ir.graph import Graph, OpKind

COUNTED = {OpKind.CONV, OpKind.GEMM, OpKind.MATMUL, OpKind.ATTENTION}


def check_flops(built: Built) -> None:
    model, args, kwargs = built
    graph = import_torch(model.eval(), args, kwargs)
    # the counter does not know the CPU's fused attention; the plain one takes the same two products
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(*args, **kwargs)
    assert sum(node.flops for node in graph.nodes if node.kind in COUNTED) == counter.get_total_flops() > 0


@pytest.mark.parametrize("name", REAL)
def test_flops_are_those_of_pytorchs_counter(name: str) -> None:
    check_flops(REAL[name]())


class Zoo(nn.Module):
    """Ops whose kind or work depends on what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.bag = nn.EmbeddingBag(10, 4, mode="sum")
        self.up = nn.ConvTranspose1d(3, 5, 2, stride=2)
        self.weight = nn.Parameter(torch.randn(4, 6))
        self.register_buffer("offsets", torch.arange(12).reshape(3, 4))
        self.lstm = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        return (
            x @ self.weight,
            x @ x.transpose(1, 2),
            torch.mm(x[0], self.weight.t().contiguous().t()),
            torch.einsum("bij,bjk->bik", x, x.transpose(1, 2)),
            self.table(ids),
            self.table.weight[ids],
            self.offsets[ids % 3],
            self.up(x),
            x.reshape(-1),
            x.transpose(0, 1).reshape(-1),
            x.transpose(0, 1).contiguous(),
            nn.functional.dropout(x, 0.5, training=False),
            nn.functional.softmax(x, -1),
            torch.zeros_like(x),
            self.lstm(x)[0],
            self.bag(ids),
        )


def zoo(trace: Callable[[nn.Module], nn.Module]) -> Graph:
    torch.manual_seed(0)
    return import_torch(trace(Zoo()), (torch.randn(2, 3, 4), torch.randint(0, 10, (2, 3))))


def exported(model: nn.Module) -> nn.Module:
    return model


@pytest.mark.parametrize("trace", [exported, fx.symbolic_trace])
def test_kinds_and_flops_of_the_zoo(trace: Callable[[nn.Module], nn.Module]) -> None:
    graph = zoo(trace)
    by_output = {output: node for node in graph.nodes for output in node.outputs}
    made = [by_output[name] for name in graph.outputs]
    assert [(node.kind.value, node.flops) for node in made[:14]] == [
        ("gemm", 2 * 2 * 3 * 4 * 6),
        ("matmul", 2 * 2 * 3 * 4 * 3),
        ("gemm", 2 * 3 * 4 * 6),
        ("matmul", 2 * 2 * 3 * 4 * 3),
        ("embedding", 0),
        ("embedding", 0),
        ("move", 0),
        ("conv", 2 * 2 * 3 * 4 * 5 * 2),
        ("view", 0),
        ("move", 0),
        ("move", 0),
        ("view", 0),
        ("softmax", 5 * 2 * 3 * 4),
        ("constant", 0),
    ]
    assert [node.flops for node in graph.nodes if "bag" in node.op.lower()] == [2 * 3 * 4]
    recurrent = [node.flops for node in graph.nodes if node.kind is OpKind.RECURRENT]
    assert recurrent == [2 * 2 * 3 * (20 * 4 + 20 * 5)]
    assert graph.source.notes == ()


@torch.library.custom_op("heterps_test::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Unknown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return twice(x)


def test_an_op_in_no_table_is_noted_and_counts_its_elements() -> None:
    graph = import_torch(Unknown(), (torch.ones(3, 4),))
    (node,) = graph.nodes
    assert (node.op, node.kind, node.flops) == ("heterps_test.twice.default", OpKind.OTHER, 12)
    assert graph.source.notes == (
        "op 'heterps_test.twice.default' (node 'twice') is in no table; its work is taken for one operation per "
        "element it makes",
    )


class Leaf(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, qualname: str) -> bool:
        return True


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Unknown()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


def test_a_users_own_leaf_module_is_noted() -> None:
    model = Holder()
    graph = import_torch(fx.GraphModule(model, Leaf().trace(model)), (torch.ones(3, 4),))
    assert [node.kind for node in graph.nodes] == [OpKind.OTHER, OpKind.ELEMENTWISE]
    (note,) = graph.source.notes
    assert "Unknown' (node 'inner') is in no table" in note


@pytest.mark.parametrize(
    ("name", "plain"),
    [("add_", "add"), ("__and__", "and"), ("__rsub__", "rsub"), ("iadd", "add"), ("relu", "relu"), ("T", "T")],
)
def test_an_op_has_one_name(name: str, plain: str) -> None:
    assert plain_name(name) == plain
    assert plain in OPS


@pytest.mark.parametrize(
    "module",
    [
        "Linear",
        "Conv2d",
        "ReLU",
        "GELU",
        "EmbeddingBag",
        "Softmax",
        "Identity",
        "MultiheadAttention",
        "Dropout",
        "SiLU",
    ],
)
def test_classes_of_torch_nn_are_in_the_table(module: str) -> None:
    assert hasattr(nn, module)
    assert module_op(module) in OPS


@pytest.mark.parametrize(
    ("op", "call", "flops"),
    [
        ("addmm", Call(((5,), (2, 3), (3, 5)), ((2, 5),)), 2 * 2 * 3 * 5),
        ("scaled_dot_product_attention", Call(((2, 4, 7, 8), (2, 4, 9, 8), (2, 4, 9, 6)), ()), 2 * 8 * 7 * 9 * 14),
        ("conv2d", Call(((1, 4, 8, 8), (6, 2, 3, 3)), ((1, 6, 8, 8),)), 2 * 6 * 64 * 2 * 9),
        ("einsum", Call(((2, 3), (3, 4)), ((2, 4),), (), ("ij,jk->ik",)), 2 * 2 * 3 * 4),
        ("einsum", Call(((2, 3),), ((3,),), (), ("ij->j",)), 6),
        ("sum", Call(((2, 3),), ((),)), 6),
        ("gru", Call(((2, 3, 4), (1, 2, 5), (15, 4), (15, 5), (15,), (15,)), ()), 2 * 6 * (60 + 75)),
        ("multi_head_attention", Call(((2, 3, 8), (2, 5, 8), (2, 5, 8)), ()), 0),
    ],
)
def test_formulas(op: str, call: Call, flops: Any) -> None:
    if op == "multi_head_attention":  # steps 2 and 2, batch 3 and 5 do not go together: batch comes from the query
        call, flops = Call(((2, 3, 8), (5, 3, 8), (5, 3, 8)), ()), 2 * 3 * (2 * 2 + 2 * 5) * 64 + 4 * 3 * 2 * 5 * 8
    assert OPS[op][1](call) == flops
