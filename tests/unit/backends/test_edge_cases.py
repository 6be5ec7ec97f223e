"""Ops at the edges of what they are defined for give the same numbers on every backend, or are refused by name.

One model has all of the ops, so that it is exported once a backend. Left out: which of equal elements ``topk`` gives,
which PyTorch leaves open, and what ``gelu`` gives of infinity, which in PyTorch depends on the tensor's length.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own habit

from heterps_compile.backends.find import find_backend
from heterps_compile.errors import BackendError
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.partition import cut_graph
from heterps_compile.runtime.in_process import run_stages

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]
NAN, INF = float("nan"), float("inf")
INPUTS = {
    "q": torch.linspace(-1, 1, 24).reshape(1, 2, 3, 4).sin(),
    "mask": torch.tensor([[[[True, False, True], [False, False, False], [True, True, True]]]]),
    "odd": torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, NAN, INF, -INF]),
    "one_nan": torch.tensor([[1.0, NAN, 3.0], [3.0, 3.0, -1.0]]),
    "base": torch.tensor([10.0, 20.0, 30.0, 40.0]),
    "tenths": torch.arange(12) * 0.1,
    "signed": torch.tensor([0.0, -0.0, 1.0, -1.0]),
    "square": torch.linspace(-2, 3, 16).reshape(4, 4),
    "at": torch.tensor([0, 1, 0, 2]),
    "src": torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "ints": torch.tensor([-7, -5, 5, 7]),
    "by": torch.tensor([2, -2, 2, -2]),
    "small": torch.tensor([200, 100, 255], dtype=torch.uint8),
}
attention = F.scaled_dot_product_attention


def scattered(reduce: str, *, include_self: bool) -> Callable[[dict[str, Tensor]], Tensor]:
    return lambda i: i["base"].scatter_reduce(0, i["at"], i["src"], reduce=reduce, include_self=include_self)


EDGES: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "attention, a row hidden by a mask of bools": lambda i: attention(i["q"], i["q"], i["q"], i["mask"]),
    "attention, a row hidden by minus infinity": lambda i: attention(
        i["q"], i["q"], i["q"], torch.where(i["mask"], 0.0, -INF)
    ),
    "softmax of minus infinity alone": lambda i: torch.where(i["mask"], 0.0, -INF).softmax(-1),
    **{
        f"scatter_reduce {reduce} {'with' if include_self else 'without'} itself": scattered(
            reduce, include_self=include_self
        )
        for reduce in ("sum", "mean", "prod", "amax", "amin")
        for include_self in (True, False)
    },
    "scatter_reduce mean of whole numbers": lambda i: i["ints"].scatter_reduce(0, i["at"], i["by"], reduce="mean"),
    "largest and least of NaN": lambda i: (i["one_nan"].amax(1), i["one_nan"].amin(0), i["one_nan"].max()),
    "sign of NaN": lambda i: (i["odd"].sign(), i["ints"].sign()),
    "clamp of NaN": lambda i: (i["odd"].clamp(-1, 1), i["odd"].clamp(min=0), i["odd"].relu()),
    "division of negatives": lambda i: (
        i["ints"] // i["by"],
        i["ints"] % i["by"],
        torch.div(i["ints"], i["by"], rounding_mode="trunc"),
        torch.fmod(i["ints"], i["by"]),
    ),
    "division of large whole numbers": lambda i: (
        torch.div(i["ints"] * 10**9 + 1, 3, rounding_mode="floor"),
        torch.div(i["ints"] * 10**9 + 1, 3, rounding_mode="trunc"),
    ),
    "quotients that are whole but for rounding": lambda i: (
        i["tenths"] // 0.1,
        -i["tenths"] // i["tenths"][3],
        torch.div(i["tenths"], -0.1, rounding_mode="floor"),
        torch.div(i["odd"], i["odd"].flip(0), rounding_mode="floor"),
        i["ints"] // 0.5,
    ),
    "rests that are none but for rounding": lambda i: (
        i["tenths"] % 0.1,
        -i["tenths"] % i["tenths"][3],
        torch.remainder(1.0, i["tenths"][1:]),
        i["odd"] % i["odd"].flip(0),
        i["ints"] % 2.5,
    ),
    "angles by the signs of zeros and infinities": lambda i: (
        torch.atan2(i["signed"], i["signed"].unsqueeze(1)),
        torch.atan2(i["odd"], i["odd"].unsqueeze(1)),
    ),
    "a step at NaN": lambda i: torch.heaviside(i["odd"], i["odd"][:1]),
    "products whose other summand is left out": lambda i: (
        torch.addmm(i["one_nan"], i["square"][:2], i["square"][:, :3], beta=0, alpha=2),
        torch.addmm(i["one_nan"][0, :1], i["square"], i["square"], beta=0),
        torch.addmm(i["square"][0], i["square"] / 0, i["square"], alpha=0),
        torch.addmv(i["base"] / 0, i["square"], i["base"], beta=0),
        torch.addmv(i["base"], i["square"] / 0, i["base"], alpha=0),
        torch.addbmm(i["square"] / 0, i["square"][None], i["square"][None], beta=0, alpha=-1),
        torch.baddbmm(i["square"][None] / 0, i["square"][None], i["square"][None], beta=0),
        torch.baddbmm(i["square"][None], i["square"][None], i["square"][None], beta=2, alpha=0.5),
        (i["square"] / 0).addmm_(i["square"], i["square"], beta=0),
    ),
    "round half to even": lambda i: i["odd"].round(),
    "wrapping of whole numbers": lambda i: (i["small"] + i["small"], i["small"].sum()),
    "a divisor of one's own": lambda i: F.avg_pool2d(i["q"], 2, 1, divisor_override=3),
    "log of a small sigmoid": lambda i: F.logsigmoid(i["base"] * -10),
    "a negative index": lambda i: (i["base"][-1], i["base"][-3:], i["base"][i["at"] - 3]),
    "sums of nothing": lambda i: (i["base"][:0].sum(), i["base"][:0].mean(), i["base"][:0].prod()),
}


def changed_after(drop: Callable[..., Tensor]) -> Callable[[dict[str, Tensor]], Tensor]:
    """Return what becomes of a tensor when what a dropout that drops nothing made of it is changed in place."""

    def run(inputs: dict[str, Tensor]) -> Tensor:
        made = inputs["square"][None] * 2
        drop(made, 0.5, False)[:, 0] = 7.0
        return made

    return run


EDGES["dropout that drops nothing"] = lambda i: tuple(
    changed_after(drop)(i) for drop in (F.dropout, F.dropout1d, F.alpha_dropout, F.feature_alpha_dropout)
)


class Edges(nn.Module):
    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Any]:
        return {name: edge(inputs) for name, edge in EDGES.items()}


def numbers(value: Any) -> Any:
    return np.asarray(value.detach() if isinstance(value, Tensor) else value)


@pytest.mark.parametrize(
    "backend", ["torch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("onnxruntime", "jax"))]
)
def test_every_edge_is_that_of_pytorch(backend: str) -> None:
    graph = import_torch(Edges().eval(), (INPUTS,))
    cut, chosen = cut_graph(graph, [range(len(graph.nodes))]), find_backend(backend)
    call = graph.source.call
    made = run_stages(cut.stages, chosen.build(graph, cut), call.bind((INPUTS,), {}), graph.outputs)
    ours, theirs = call.assemble(made), Edges()(copy.deepcopy(INPUTS))
    different = []
    for name, wanted in theirs.items():
        each = zip(ours[name], wanted, strict=True) if isinstance(wanted, tuple) else [(ours[name], wanted)]
        for one, other in each:
            a, b = numbers(one), numbers(other)
            if a.dtype != b.dtype or a.shape != b.shape or not np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True):
                different.append((name, a, b))
    assert different == []


class Smoothed(nn.Module):
    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(x, labels, label_smoothing=0.1)


class Divided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 3, 2, ceil_mode=True, divisor_override=2)


@pytest.mark.parametrize(
    ("model", "inputs", "fault"),
    [
        (Smoothed(), (torch.ones(4, 4), INPUTS["at"]), "cross_entropy_loss.*smooths"),
        (Divided(), (torch.ones(1, 1, 6, 6),), "avg_pool2d.*divisor.*windows"),
    ],
)
def test_what_onnx_cannot_have_is_refused_by_name(model: nn.Module, inputs: tuple[Tensor, ...], fault: str) -> None:
    graph = import_torch(model.eval(), inputs)
    with pytest.raises(BackendError, match=fault):
        find_backend("onnxruntime").build(graph, cut_graph(graph, [range(len(graph.nodes))]))
