"""Fourier transforms, windows and mel weights.

Left out: nothing of ONNX.
"""

import math

import torch
from torch import Tensor

from .dtypes import TORCH_TYPES
from .table import Float, Int, op


@op("DFT", 17)
def dft_by_attribute(x: Tensor, length: Int | None = None, *, axis: int, inverse: int, onesided: int) -> Tensor:
    return dft(x, length, axis, inverse=inverse, onesided=onesided)


@op("DFT", 20)
def dft(
    x: Tensor, length: Int | None = None, axis: Int | None = None, *, inverse: int = 0, onesided: int = 0
) -> Tensor:
    """The last dimension is the real part alone, or the real and the imaginary part."""
    along = (-2 if axis is None else int(axis)) % x.dim()
    signal = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x.squeeze(-1)
    if inverse and onesided:
        real: Tensor = torch.fft.irfft(signal, length, along)
        return real.unsqueeze(-1)
    if inverse:
        return torch.view_as_real(torch.fft.ifft(signal, length, along))
    if onesided and not signal.is_complex():
        return torch.view_as_real(torch.fft.rfft(signal, length, along))
    made = torch.view_as_real(torch.fft.fft(signal, length, along))
    return made.narrow(along, 0, made.shape[along] // 2 + 1) if onesided else made


@op("STFT", 17)
def stft(x: Tensor, step: Int, window: Tensor | None = None, length: Int | None = None, *, onesided: int) -> Tensor:
    size = int(length) if length is not None else (x.shape[1] if window is None else window.shape[0])
    frames = x.unfold(1, size, int(step))  # (batch, frames, parts, size)
    if window is not None:
        frames = frames * window
    parts = frames.transpose(2, 3)
    return dft(parts, size, -2, onesided=onesided)


def _window(size: int, periodic: int, dtype: int, *terms: float) -> Tensor:
    """Add up cosines: the window is the sum of (-1)^i * term_i * cos(2 * pi * i * n / N)."""
    last = size if periodic else size - 1
    angle = torch.arange(int(size), dtype=torch.float64) * (2 * math.pi / last)
    made = torch.zeros_like(angle)
    for i, term in enumerate(terms):
        made = made + (-1) ** i * term * torch.cos(i * angle)
    return made.to(TORCH_TYPES[dtype])


@op("HannWindow", 17)
def hann_window(size: Int, *, output_datatype: int, periodic: int) -> Tensor:
    return _window(size, periodic, output_datatype, 0.5, 0.5)


@op("HammingWindow", 17)
def hamming_window(size: Int, *, output_datatype: int, periodic: int) -> Tensor:
    return _window(size, periodic, output_datatype, 25 / 46, 21 / 46)


@op("BlackmanWindow", 17)
def blackman_window(size: Int, *, output_datatype: int, periodic: int) -> Tensor:
    return _window(size, periodic, output_datatype, 0.42, 0.5, 0.08)


@op("MelWeightMatrix", 17)
def mel_weight_matrix(
    bins: Int, length: Int, rate: Int, lowest: Float, highest: Float, *, output_datatype: int
) -> Tensor:
    """Triangles over the frequencies of a transform, evenly spaced as an ear hears them."""
    low, high = (2595 * math.log10(1 + hertz / 700) for hertz in (lowest, highest))
    step = (high - low) / (int(bins) + 2)
    edges = [700 * (10 ** ((low + i * step) / 2595) - 1) for i in range(int(bins) + 2)]
    places = [int((int(length) + 1) * edge // int(rate)) for edge in edges]
    rows = torch.arange(int(length) // 2 + 1, dtype=torch.float64)
    columns = []
    for left, middle, right in zip(places, places[1:], places[2:], strict=False):
        rising = (rows - left) / (middle - left) if middle > left else (rows == middle).to(torch.float64)
        falling = (right - rows) / (right - middle) if right > middle else torch.zeros_like(rows)
        up = torch.where((rows >= left) & (rows <= middle), rising, 0.0)
        columns.append(torch.where((rows >= middle) & (rows < right), falling, up))
    return torch.stack(columns, 1).to(TORCH_TYPES[output_datatype])
