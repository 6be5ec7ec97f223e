"""What runs and cannot be saved is known before the search: a note from Python, an error where a folder is wanted."""

import re
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

import heterps_compile
from heterps_compile.backends.find import find_backend
from heterps_compile.backends.ops import why_unwritable
from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.cli.main import run
from heterps_compile.errors import BackendError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import Graph

X = torch.ones(4, 8)
BOXES = """
<ir_version: 8, opset_import: ["" : 18]>
agraph (float[1,6,4] boxes, float[1,1,6] scores) => (int64[2,3] y)
<int64[1] most = {2}, float[1] overlap = {0.5}> {
  moved = Relu(boxes)
  y = NonMaxSuppression(moved, scores, most, overlap)
}
"""


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        chosen: Tensor = torch.cond(x.sum() > 0, self.first, self.second, (x,))
        return chosen


def boxes() -> Graph:
    return import_onnx(onnx.parser.parse_model(BOXES))


def test_a_model_that_cannot_be_saved_says_so_in_its_plan_or_is_refused_before_the_search(tmp_path: Path) -> None:
    fault = "'torch'.*'Branches'.*'cond'.*cond"
    compiled = heterps_compile.compile(Branches(), (X,), method="greedy")
    assert any(re.search(fault, note) for note in compiled.plan.notes)
    with pytest.raises(BackendError, match=r"'cond'.*cond"):
        compiled.save(tmp_path / "out")
    steps: list[str] = []
    with pytest.raises(BackendError, match=fault):
        heterps_compile.compile(
            Branches(), (X,), method="greedy", must_save=True, observer=lambda step, _: steps.append(step.name)
        )
    assert steps == []


def test_an_onnx_op_that_branches_on_elements_is_known_before_the_search() -> None:
    assert "NonMaxSuppression" in why_unwritable(find_backend("torch"), boxes())
    assert why_unwritable(find_backend("onnxruntime"), boxes()) == ""
    assert why_unwritable(find_backend("cpu=onnxruntime,gpu=torch"), boxes()) == ""


def test_the_command_refuses_it_before_the_search_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(BOXES), tmp_path / "boxes.onnx")
    assert run(["boxes.onnx", "--backend", "torch"]) == 1
    told = capsys.readouterr().err
    assert "the backend 'torch' runs 'boxes' and cannot save its stages" in told
    assert "http" not in told
    assert [path.name for path in tmp_path.iterdir()] == ["boxes.onnx"]


def test_models_that_can_be_saved_are_not_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.LSTM(8, 4))
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    for given in (model, traced):
        assert why_unwritable(find_backend("torch"), import_torch(given, (X,))) == ""


def test_experts_that_only_their_library_runs_come_with_the_way_out() -> None:
    op = "transformers.grouped_mm_fallback.default"
    told = UnsupportedNode("experts", op, "transformers", 20, "ONNX has nothing for it").describe()
    assert told.endswith("batch the experts (experts_implementation='batched_mm' in the model's config)")
