"""Models of PyTorch with what ONNX lacks compile on the backends that go through ONNX; the oracle is the model."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from heterps_compile import compile as compile_model

pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")
BACKENDS = pytest.mark.parametrize("backend", ["onnxruntime", "jax"])


class Lacking(nn.Module):
    """An LSTM with projections, attention of three dimensions, and repetitions whose total is known."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True, proj_size=3)
        self.register_buffer("repeats", torch.tensor([1, 3, 2]))

    def forward(self, x, mask):
        hidden, _ = self.lstm(x)
        rows = torch.repeat_interleave(hidden, self.repeats, dim=1, output_size=6)
        return nn.functional.scaled_dot_product_attention(rows, hidden, hidden, attn_mask=mask)


class UNet(nn.Module):
    """Two levels down and up, with attention over the pixels in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down, self.low = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 2, 2), nn.Conv2d(4, 4, 2, 2)
        self.up, self.last = nn.ConvTranspose2d(4, 4, 2, 2), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        first = self.first(x).relu()
        down = self.down(first).relu()
        low = self.low(down)
        pixels = low.flatten(2).transpose(1, 2)
        mixed = (
            nn.functional.scaled_dot_product_attention(pixels, pixels, pixels)
            .transpose(1, 2)
            .unflatten(2, low.shape[2:])
        )
        up = nn.functional.interpolate(mixed, scale_factor=2.0) + down
        return self.last(torch.cat([self.up(up), first], 1))


def difference(one, other) -> float:
    return float(np.abs(np.asarray(one) - other.detach().numpy()).max())


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.slow  # exports every op that ONNX lacks
@pytest.mark.parametrize("backend", ["onnxruntime", "jax"])
def test_what_onnx_lacks_is_written_out(backend):
    module, mask = Lacking().eval(), torch.zeros(2, 1, 3)
    mask[1] = -torch.inf  # PyTorch gives 0 there
    made = compile_model(module, (torch.randn(2, 3, 4), mask), backend=backend, method="greedy")
    x = torch.randn(2, 3, 4)
    assert difference(made.run(x, mask), module(x, mask)) < 1e-5


@pytest.mark.slow  # exports four stages with free sizes
@BACKENDS
def test_multiples_of_height_and_width_stay_free_over_cuts(backend):
    module, (height, width) = UNet().eval(), (Dim("height", min=1, max=64), Dim("width", min=1, max=64))
    shapes = ({0: Dim("batch"), 2: 4 * height, 3: 4 * width},)
    example = (torch.randn(2, 2, 8, 12),)
    options = {"dynamic_shapes": shapes, "min_stages": 4, "method": "greedy"}
    made = compile_model(module, example, backend=backend, **options)
    x = torch.randn(3, 2, 16, 20)
    assert len(made.stages) >= 4
    assert difference(made.run(x), module(x)) < 1e-5
