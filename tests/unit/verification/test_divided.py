"""A plan divides a batch only where samples are independent, and names the first node that mixes them."""

from collections.abc import Callable

import onnx
import pytest
import torch
from torch import Tensor, nn

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
    "cumulative sum": (lambda net, h: h.cumsum(0), "cumsum"),
    "sorted": (lambda net, h: h.sort(0)[0], "getitem"),
    "statistics, then a norm that is excused": (lambda net, h: net.norm(h - h.mean(0)), "mean"),
    "a sum": (lambda net, h: h.sum(), "sum_1"),
}
INDEPENDENT: dict[str, Forward] = {
    "rows": lambda net, h: h.relu(),
    "a norm": lambda net, h: net.norm(h),
    "noise": lambda net, h: net.drop(h),
    "the mean, as of a loss": lambda net, h: h.square().mean(),
    "samples inside": lambda net, h: h.T.contiguous().relu().T,
    "changed in place": lambda net, h: h.relu_().mul_(2),
}


@pytest.mark.parametrize("mode", [False, True])
@pytest.mark.parametrize("name", MIXING)
def test_the_node_that_mixes_samples_is_found(name: str, mode: bool) -> None:
    then, node = MIXING[name]
    graph = checked(Net(then).train(mode), (torch.randn(8, 8),), dynamic_shapes=_ROWS)
    assert not graph.is_divisible
    assert f"'{node}'" in graph.mixes


@pytest.mark.parametrize("mode", [False, True])
@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_samples_stay_divisible(name: str, mode: bool) -> None:
    graph = checked(Net(INDEPENDENT[name]).train(mode), (torch.randn(8, 8),), dynamic_shapes=_ROWS)
    assert graph.is_divisible
    assert (graph.mixes, graph.unchecked) == ("", "")


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


@pytest.mark.parametrize(("axis", "mixes"), [(0, True), (1, False)])
def test_an_onnx_model_is_checked_alike(axis: int, mixes: bool) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        mixing (float[N,4] x) => (float[N,4] y) <int64 axis = {{{axis}}}> {{
            h = Relu(x)
            c = CumSum(h, axis)
            y = Neg(c)
        }}"""
    graph = checked(onnx.parser.parse_model(text), batch=8)
    assert (not graph.is_divisible, "CumSum" in graph.mixes) == (mixes, mixes)


def test_a_batch_that_cannot_be_run_is_noted() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with torch.device("meta"):
        meta = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    graph = checked(meta, (torch.ones(8, 8, device="meta"),), dynamic_shapes=_ROWS)
    assert "'0." in graph.unchecked
    assert not checked(model, (torch.ones(8, 8),), dynamic_shapes=_ROWS).unchecked
