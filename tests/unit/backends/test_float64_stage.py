"""What ONNX Runtime lacks in float64 is run by definition, its float32 kernel held against that: for verification."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_models import BACKEND as TORCH
from torch_models import cut_into

import heterps_compile
from heterps_compile.backends.mixed import MixedBackend
from heterps_compile.backends.onnxruntime.backend import OnnxRuntimeBackend
from heterps_compile.backends.torch import run_onnx as run_onnx_module
from heterps_compile.errors import BackendError, VerificationError
from heterps_compile.frontends.torch_fx import import_torch

pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")


class Lacking(nn.Module):
    """Ops that ONNX Runtime has no float64 kernels for, and some that it has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last = nn.Conv2d(3, 4, 3, padding=1, stride=2, groups=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = nn.functional.gelu(self.conv(x))
        h = nn.functional.interpolate(nn.functional.avg_pool2d(h, 2), scale_factor=2, mode="nearest")
        h = nn.functional.softplus(nn.functional.max_pool2d(h, 2)).atan()
        return self.last(h.mean((2, 3)).softmax(-1)).topk(2)


def test_a_float64_stage_gives_what_the_model_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Lacking().double().eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    graph = import_torch(module, (x,))
    mixed = MixedBackend({}, (OnnxRuntimeBackend(), OnnxRuntimeBackend()))
    first, second = mixed.build_in_float64(graph, cut_into(graph, 2))
    live = dict(zip(first.outputs, first(x), strict=True)) | {graph.inputs[0]: x}
    live |= dict(zip(second.outputs, second(*(live[name] for name in second.inputs)), strict=True))
    for name, theirs in zip(graph.outputs, TORCH.reference(graph)({graph.inputs[0]: x}), strict=True):
        np.testing.assert_allclose(live[name], theirs.detach().numpy(), rtol=1e-12)

    run_onnx = run_onnx_module.run_onnx
    monkeypatch.setattr(run_onnx_module, "run_onnx", lambda *given: [1.01 * array for array in run_onnx(*given)])
    with pytest.raises(BackendError, match=r"stage 0\b.*'Conv_\d+'.*Conv.*float32"):
        first(x)


class Tie(nn.Module):
    """Two logits that differ by less than float32 can hold apart decide the row of a table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        row = torch.tensor([1.0, 1e-3, 0, 0])
        self.first = nn.Conv1d(1, 2, 4, bias=False)
        self.first.weight.data = torch.stack([row, torch.nextafter(row, row + 1)])[:, None]
        self.first.weight.data[1, 0, 0] = 1.0
        self.same = nn.Linear(2, 2, bias=False)
        self.same.weight.data = torch.eye(2)
        self.table, self.last = nn.Embedding(2, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.table(self.same(self.first(x)[..., 0]).argmax(-1)))


class Changed:
    """A stage whose results are another's, changed."""

    def __init__(self, stage: Any, change: Any) -> None:
        self.inputs, self.outputs, self.stage, self.change = stage.inputs, stage.outputs, stage, change

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        return tuple(map(self.change, self.stage(*values)))


def _compiled() -> heterps_compile.CompiledModel:
    x = torch.randn(6, 1, 4, generator=torch.Generator().manual_seed(1))
    return heterps_compile.compile(Tie(), (x,), backend="onnxruntime", method="greedy", min_stages=4)


@pytest.mark.slow  # whole models, compiled and run
@pytest.mark.parametrize("is_wrong", [False, True])
def test_near_ties_are_told_from_faults_where_onnxruntime_has_no_kernels(
    is_wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rounded(y: Any) -> Any:
        return np.stack([y[:, 0], np.nextafter(y[:, 1], np.inf, dtype=y.dtype)], -1)

    def wrong(y: Any) -> Any:
        return y * np.asarray([1.0, 1.5], y.dtype)

    for name, change in (("build", wrong if is_wrong else rounded), ("build_in_float64", wrong if is_wrong else None)):
        build = getattr(OnnxRuntimeBackend, name)

        def changed(self: Any, graph: Any, partition: Any, build: Any = build, change: Any = change) -> Any:
            first, *others = build(self, graph, partition)
            return (Changed(first, change) if change else first, *others)

        monkeypatch.setattr(OnnxRuntimeBackend, name, changed)
    if is_wrong:
        with pytest.raises(VerificationError, match="float64"):
            _compiled()
    else:
        plan = _compiled().plan
        assert plan.verification is not None
        assert plan.verification.max_rel < 1e-12
        assert any("verified in float64" in note for note in plan.notes)
