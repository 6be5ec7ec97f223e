"""A PyTorch model whose modules and buffers have hostile names: every backend, at another batch than the model's."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import heterps_compile

NAMES = (
    "\"; import os; os.system('touch escaped') #", "\"\"\"", "/etc/passwd", "a\nb", "été中", "lambda", "x" * 10_000,
    "a-b", "a_b", "a b", "@@INDEX@@", "params", "key", "step", "\\", "{x}", "%s",
)  # fmt: skip


class Hostile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name in NAMES:
            self._modules[name.replace(".", "_")] = nn.Linear(4, 4)
        self._modules["norm'\n]"] = nn.BatchNorm1d(4)
        self._buffers["x'\n]"] = torch.linspace(0.5, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        for name, layer in self._modules.items():
            x = layer(x) if name.startswith("norm") else torch.relu(layer(x)) + x
        return x * self._buffers["x'\n]"]


@pytest.mark.slow  # a full product of backends and names
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript")
@pytest.mark.parametrize(
    ("backend", "training"), [("torch", False), ("torch", True), ("onnxruntime", False), ("jax", False), ("jax", True)]
)
def test_names_are_data_in_every_backend(
    backend: str, training: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = Hostile().train(training)
    batch = ({0: torch.export.Dim("batch")},)
    compiled = heterps_compile.compile(model, (torch.randn(3, 4),), dynamic_shapes=batch, backend=backend, min_stages=3)
    compiled.save("out")
    assert os.listdir(tmp_path) == ["out"]
    assert all(name.startswith(("stage_", "plan.json", "README.md", ".heterps-compile")) for name in os.listdir("out"))
    x = torch.randn(7, 4)
    expected = model(x).detach()
    found = torch.as_tensor(heterps_compile.load("out").run(x)).detach()
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert os.listdir(tmp_path) == ["out"]
