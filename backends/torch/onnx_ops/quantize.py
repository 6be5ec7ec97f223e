"""Quantisation, and products and convolutions of quantised tensors.

Left out: kernels on integers; the numbers are computed in int32 or float and rounded as ONNX says.
"""

import torch
from torch import Tensor

from .conv import conv
from .dtypes import FLOAT4, FLOAT8, TORCH_TYPES
from .table import op
from .types import to_float4, to_float8

_RANGES = {
    2: (0, 255), 3: (-128, 127), 4: (0, 65535), 5: (-32768, 32767),
    21: (0, 15), 22: (-8, 7), 25: (0, 3), 26: (-2, 1),
}  # fmt: skip


def _along(part: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """Return a scale or zero point in a shape that broadcasts against the tensor it belongs to."""
    if part.dim() == 0 or part.numel() == 1:
        return part.reshape(())
    if part.dim() == 1 and not block_size:
        shape = [1] * x.dim()
        shape[axis] = part.shape[0]
        return part.reshape(shape)
    if block_size:
        return part.repeat_interleave(block_size, axis).narrow(axis, 0, x.shape[axis])
    return part


@op("QuantizeLinear", 10)
def quantize(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
    types: list[int],
) -> Tensor:
    number = (types[2] if zero is not None and len(types) > 2 else 0) or output_dtype or 2
    step = _along(scale, x, axis, block_size)
    wide = TORCH_TYPES[precision] if precision else torch.promote_types(_computed(x).dtype, torch.float32)
    scaled = _computed(x).to(wide) / step.to(wide)
    if number in FLOAT8:
        return to_float8(scaled, number, bool(saturate))
    if number == FLOAT4:
        return to_float4(scaled)
    least, most = _RANGES[number]
    rounded = torch.round(scaled)
    if zero is not None:
        rounded = rounded + _along(zero.to(wide), x, axis, block_size)
    return rounded.clamp(least, most).to(torch.int32).to(TORCH_TYPES[number])


def _computed(x: Tensor) -> Tensor:
    return (
        x
        if x.dtype in (torch.float32, torch.float64, torch.int32, torch.float16, torch.bfloat16)
        else x.to(torch.float32)
    )


@op("DequantizeLinear", 10)
def dequantize(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    result = TORCH_TYPES[output_dtype] if output_dtype else scale.dtype
    if scale.dtype.itemsize == 1:
        scale = scale.to(torch.float32)
    centred = x.to(torch.float32) if x.is_floating_point() else x.to(torch.int32)
    if zero is not None:
        centred = centred - _along(zero.to(centred.dtype), x, axis, block_size)
    return (centred.to(scale.dtype) * _along(scale, x, axis, block_size)).to(result)


@op("DynamicQuantizeLinear", 11)
def dynamic_quantize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.amin().clamp(max=0.0), x.amax().clamp(min=0.0)
    scale = torch.where(high == low, 1.0, (high - low) / 255)
    zero = torch.round((-low / scale).clamp(0, 255))
    y = (torch.round(x / scale) + zero).clamp(0, 255)
    return y.to(torch.uint8), scale, zero.to(torch.uint8)


def _centred(x: Tensor, zero: Tensor | None, per_row: bool) -> Tensor:
    wide = x.to(torch.int32)
    if zero is None:
        return wide
    shift = zero.to(torch.int32)
    return wide - (shift.unsqueeze(-1) if per_row and shift.dim() == 1 and shift.numel() > 1 else shift)


@op("MatMulInteger", 10)
def mat_mul_integer(a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None) -> Tensor:
    return torch.matmul(_centred(a, a_zero, True), _centred(b, b_zero, False))


def _requantize(x: Tensor, zero: Tensor, number: int) -> Tensor:
    least, most = _RANGES[number]
    return (torch.round(x) + zero.to(x.dtype)).clamp(least, most).to(TORCH_TYPES[number])


@op("QLinearMatMul", 10)
def quantized_mat_mul(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    *,
    types: list[int],
) -> Tensor:
    product = mat_mul_integer(a, b, a_zero, b_zero).to(torch.float32)
    rows = a_scale.unsqueeze(-1) if a_scale.dim() == 1 and a_scale.numel() > 1 else a_scale
    factor = rows.to(torch.float32) * b_scale.to(torch.float32) / y_scale.to(torch.float32)
    return _requantize(product * factor, y_zero, types[7])


@op("ConvInteger", 10)
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """In float64, which has room for every sum of products of 8-bit integers."""
    centred = _centred(x, x_zero, False).to(torch.float64)
    weights = w.to(torch.float64)
    if w_zero is not None:
        weights = weights - w_zero.to(torch.float64).reshape([-1] + [1] * (w.dim() - 1) if w_zero.dim() else [])
    made = conv(centred, weights, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides)
    return made.to(torch.int32)


@op("QLinearConv", 10)
def quantized_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str,
    dilations: list[int] | None = None,
    group: int,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
    types: list[int],
) -> Tensor:
    made = conv_integer(
        x, w, x_zero, w_zero, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides
    )
    channels = [-1] + [1] * (x.dim() - 2)
    if b is not None:
        made = made + b.reshape(channels)
    factor = x_scale * w_scale / y_scale
    return _requantize(
        made.to(torch.float32) * (factor.reshape(channels) if factor.dim() else factor), y_zero, types[7]
    )
