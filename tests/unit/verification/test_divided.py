"""A plan divides a batch only where samples are independent, and names the first node that mixes them."""

from collections.abc import Callable

import onnx
import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from heterps_compile import compile as compile_model
from heterps_compile.api import open_draft
from heterps_compile.errors import InfeasibleError
from heterps_compile.ir.graph import Graph

_ROWS = ({0: torch.export.Dim("rows", min=2)},)
Forward = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    def __init__(self, then: Forward) -> None:
        super().__init__()
        self.linear, self.norm, self.drop, self.then = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self, self.linear(x))


def checked(model: object, inputs: tuple[Tensor, ...] = (), **asked: object) -> Graph:
    return open_draft(model, inputs, **asked).graph


MIXING: dict[str, tuple[Forward, str]] = {
    "attention over the batch": (lambda net, h: torch.softmax(h @ h.T, -1) @ h, "matmul"),
    "in-batch negatives": (lambda net, h: nn.functional.cross_entropy(h @ h.T, torch.arange(h.shape[0])), "matmul"),
    "cumulative sum": (lambda net, h: h.cumsum(0), "cumsum"),
    "sorted": (lambda net, h: h.sort(0)[0], "sort"),
    "reversed": (lambda net, h: h + h.flip(0), "flip"),
    "scaled by the largest": (lambda net, h: h / h.abs().max(), "max_1"),
    "scaled by the batch": (lambda net, h: h / h.shape[0], "div"),
    "statistics, then a norm that is excused": (lambda net, h: net.norm(h - h.mean(0)), "mean"),
    "a sum": (lambda net, h: h.sum(), "sum_1"),
    "a mean that is no loss": (lambda net, h: h.mean(0), "mean"),
}
INDEPENDENT: dict[str, Forward] = {
    "rows": lambda net, h: h.relu(),
    "a norm": lambda net, h: net.norm(h),
    "noise": lambda net, h: net.drop(h) + torch.randn_like(h),
    "a loss": lambda net, h: h.square().mean(),
    "samples inside": lambda net, h: h.T.contiguous().relu().T,
    "changed in place": lambda net, h: h.relu_().mul_(2),
}


@pytest.mark.parametrize("name", MIXING)
def test_the_node_that_mixes_samples_is_found(name: str) -> None:
    then, node = MIXING[name]
    graph = checked(Net(then).eval(), (torch.randn(8, 8),), dynamic_shapes=_ROWS)
    assert not graph.is_divisible
    assert f"'{node}'" in graph.mixes


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_samples_stay_divisible(name: str) -> None:
    graph = checked(Net(INDEPENDENT[name]).train(), (torch.randn(8, 8),), dynamic_shapes=_ROWS)
    assert graph.is_divisible
    assert (graph.mixes, graph.unchecked) == ("", "")


def test_a_traced_norm_is_excused() -> None:
    traced = fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).train())
    free = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    next(iter(traced.graph.nodes)).meta["val"] = FakeTensorMode(
        shape_env=ShapeEnv(), allow_non_fake_inputs=True
    ).from_tensor(torch.randn(8, 8), symbolic_context=free)
    graph = checked(traced, batch=8)
    assert (graph.batch_symbol, graph.mixes, graph.unchecked) == ("batch", "", "")


def test_a_graph_of_nodes_is_planned_whole_and_its_floor_refused() -> None:
    class Sage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            h = self.linear(x)
            return torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])

    torch.manual_seed(0)
    inputs = torch.randn(2000, 64), torch.randint(0, 2000, (2, 8000))
    shapes = ({0: torch.export.Dim("nodes", min=2)}, {1: torch.export.Dim("edges", min=2)})
    model = Sage().eval()
    plan = compile_model(model, inputs, dynamic_shapes=shapes, method="greedy", objective="throughput").plan
    assert (plan.schedule.micro_batches, {stage.replicas for stage in plan.stages}) == (1, {1})
    assert any("mixes samples" in note for note in plan.notes)
    with pytest.raises(InfeasibleError, match="'index"):
        compile_model(model, inputs, dynamic_shapes=shapes, method="greedy", min_throughput=1e12)


ONNX: dict[str, tuple[str, str]] = {
    "rows": ("float[N,4] y", "y = Softmax<axis = 1>(x)"),
    "a loss": ("float y", "y = ReduceMean<keepdims = 0>(x)"),
    "noise": ("float[N,4] y", "r = RandomNormalLike(x) y = Add(x, r)"),
    "dynamic quantisation": ("float[N,4] y", "q, s, o = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, o)"),
    "one branch": (
        "float[N,4] y",
        "m = ReduceSum<keepdims = 0>(x) b = IsInf(m) y = If(b) <"
        "then_branch = then () => (float[N,4] p) {p = CumSum(x, axis)}, "
        "else_branch = otherwise () => (float[N,4] q) {q = Relu(x)}>",
    ),
    "CumSum": ("float[N,4] y", "h = Relu(x) c = CumSum(h, axis) y = Neg(c)"),
    "NonZero": ("int64[2,M] y", "y = NonZero(x)"),
    "ReduceMean": ("float[N,4] y", "r = RandomNormalLike(x) n = Add(x, r) m = ReduceMean<axes = [0]>(n) y = Sub(n, m)"),
    "Loop": (
        "float[N,4] y",
        "y = Loop(turns, , x) <body = each (int64 i, bool c, float[N,4] h) => (bool d, float[N,4] g) "
        "{d = Identity(c) m = ReduceMax<axes = [0]>(h) g = Sub(h, m)}>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONNX)
def test_an_onnx_model_is_checked_alike(name: str) -> None:
    output, body = ONNX[name]
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        model (float[N,4] x) => ({output}) <int64 axis = {{0}}, int64 turns = {{2}}> {{ {body} }}"""
    graph = checked(onnx.parser.parse_model(text), batch=8)
    assert bool(graph.unchecked) == (name in ("dynamic quantisation", "one branch"))
    assert graph.is_divisible == name[0].islower()
    assert graph.is_divisible or f"({name})" in graph.mixes


def test_a_batch_that_cannot_be_run_is_noted() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with torch.device("meta"):
        meta = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    graph = checked(meta, (torch.ones(8, 8, device="meta"),), dynamic_shapes=_ROWS)
    assert "'0." in graph.unchecked
    assert not checked(model, (torch.ones(8, 8),), dynamic_shapes=_ROWS).unchecked
