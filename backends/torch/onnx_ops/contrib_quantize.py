"""Quantised ops of ONNX Runtime's own domain, ``com.microsoft``: a tensor comes with its scale and zero point.

Left out: kernels on integers; the numbers are computed as real ones and rounded.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .contrib import MICROSOFT
from .pool import average_pool
from .quantize import dequantize, dynamic_quantize, mat_mul_integer, quantize
from .recurrent import Layer, run_lstm
from .table import op


def _number(x: Tensor) -> int:
    return 2 if x.dtype == torch.uint8 else 3


def _real(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    return dequantize(x, scale, zero)


def _whole(x: Tensor, scale: Tensor, zero: Tensor | None, like: Tensor) -> Tensor:
    zero = torch.zeros((), dtype=like.dtype, device=like.device) if zero is None else zero
    return quantize(x, scale, zero, types=[1, 1, _number(like)])


@op("QuantizeLinear", 1, domain=MICROSOFT)
def quantize_linear(x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1, types: list[int]) -> Tensor:
    return quantize(x, scale, zero, axis=axis, types=types)


@op("DequantizeLinear", 1, domain=MICROSOFT)
def dequantize_linear(x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1) -> Tensor:
    return dequantize(x, scale, zero, axis=axis)


@op("QLinearAdd", 1, domain=MICROSOFT)
def q_linear_add(
    a: Tensor, a_scale: Tensor, a_zero: Tensor | None, b: Tensor, b_scale: Tensor, b_zero: Tensor | None,
    scale: Tensor, zero: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return _whole(_real(a, a_scale, a_zero) + _real(b, b_scale, b_zero), scale, zero, a)


@op("QLinearMul", 1, domain=MICROSOFT)
def q_linear_mul(
    a: Tensor, a_scale: Tensor, a_zero: Tensor | None, b: Tensor, b_scale: Tensor, b_zero: Tensor | None,
    scale: Tensor, zero: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return _whole(_real(a, a_scale, a_zero) * _real(b, b_scale, b_zero), scale, zero, a)


@op("QLinearSigmoid", 1, domain=MICROSOFT)
def q_linear_sigmoid(
    x: Tensor, x_scale: Tensor, x_zero: Tensor | None, scale: Tensor, zero: Tensor | None = None
) -> Tensor:
    return _whole(torch.sigmoid(_real(x, x_scale, x_zero)), scale, zero, x)


@op("QLinearLeakyRelu", 1, domain=MICROSOFT)
def q_linear_leaky_relu(
    x: Tensor, x_scale: Tensor, x_zero: Tensor | None, scale: Tensor, zero: Tensor | None = None, *,
    alpha: float,
) -> Tensor:  # fmt: skip
    return _whole(F.leaky_relu(_real(x, x_scale, x_zero), alpha), scale, zero, x)


@op("QLinearSoftmax", 1, domain=MICROSOFT)
def q_linear_softmax(
    x: Tensor, x_scale: Tensor, x_zero: Tensor | None, scale: Tensor, zero: Tensor, *, axis: int, opset: int
) -> Tensor:
    real = _real(x, x_scale, x_zero)
    if opset < 13 and axis % x.dim() != x.dim() - 1:
        made = torch.softmax(real.flatten(axis % x.dim()), -1).reshape(x.shape)
    else:
        made = torch.softmax(real, axis)
    return _whole(made, scale, zero, x)


@op("QLinearConcat", 1, domain=MICROSOFT)
def q_linear_concat(scale: Tensor, zero: Tensor, *parts: Tensor, axis: int) -> Tensor:
    threes = [parts[i : i + 3] for i in range(0, len(parts), 3)]
    return torch.cat([_whole(_real(x, s, z), scale, zero, zero) for x, s, z in threes], axis)


@op("QLinearWhere", 1, domain=MICROSOFT)
def q_linear_where(
    condition: Tensor, a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
    scale: Tensor, zero: Tensor,
) -> Tensor:  # fmt: skip
    real = torch.where(condition, _real(a, a_scale, a_zero), _real(b, b_scale, b_zero))
    return _whole(real, scale, zero, a)


@op("QLinearGlobalAveragePool", 1, domain=MICROSOFT)
def q_linear_global_average_pool(
    x: Tensor, x_scale: Tensor, x_zero: Tensor, scale: Tensor, zero: Tensor, *, channels_last: int
) -> Tensor:
    axes = list(range(1, x.dim() - 1) if channels_last else range(2, x.dim()))
    return _whole(_real(x, x_scale, x_zero).mean(axes, keepdim=True), scale, zero, x)


@op("QLinearAveragePool", 1, domain=MICROSOFT)
def q_linear_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    auto_pad: str,
    ceil_mode: int,
    channels_last: int,
    count_include_pad: int,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    real = _real(x, x_scale, x_zero)
    made = average_pool(
        real.movedim(-1, 1) if channels_last else real, auto_pad=auto_pad, ceil_mode=ceil_mode,
        count_include_pad=count_include_pad, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip
    return _whole(made.movedim(1, -1) if channels_last else made, scale, zero, x)


@op("MatMulIntegerToFloat", 1, domain=MICROSOFT)
def mat_mul_integer_to_float(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    product = mat_mul_integer(a, b, a_zero, b_zero).to(a_scale.dtype) * (a_scale * b_scale)
    return product if bias is None else product + bias


@op("DynamicQuantizeMatMul", 1, domain=MICROSOFT)
def dynamic_quantize_mat_mul(
    a: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    whole, scale, zero = dynamic_quantize(a)
    return mat_mul_integer_to_float(whole, b, scale, b_scale, zero, b_zero, bias)


@op("DynamicQuantizeLSTM", 1, domain=MICROSOFT)
def dynamic_quantize_lstm(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, lengths: Tensor | None, start_h: Tensor | None,
    start_c: Tensor | None, peepholes: Tensor | None, w_scale: Tensor, w_zero: Tensor, r_scale: Tensor, r_zero: Tensor,
    *, activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None,
    activations: list[str] | None = None, clip: float | None = None, direction: str, hidden_size: int | None = None,
    input_forget: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    def rounded(value: Tensor) -> Tensor:
        return dequantize(*dynamic_quantize(value))

    def real(weights: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        scale, zero = (part.reshape(weights.shape[0], 1, -1) for part in (scale, zero.to(torch.int32)))
        return ((weights.to(torch.int32) - zero) * scale).transpose(1, 2).to(x.dtype)

    names = activations or ["Sigmoid", "Tanh", "Tanh"] * w.shape[0]
    layer = Layer(rounded(x), direction, 0, clip, names, activation_alpha, activation_beta)
    inputs = [real(w, w_scale, w_zero), real(r, r_scale, r_zero), b, lengths, start_h, start_c, peepholes]
    return run_lstm(layer, names, inputs, input_forget, rounded)


@op("QGemm", 1, domain=MICROSOFT)
def q_gemm(
    a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor, c: Tensor | None = None,
    scale: Tensor | None = None, zero: Tensor | None = None, *,
    alpha: float,
    transA: int,  # noqa: N803 - ONNX's names
    transB: int,  # noqa: N803
) -> Tensor:  # fmt: skip
    left = a.to(torch.int32) - a_zero.to(torch.int32)
    shift = b_zero.to(torch.int32)
    right = b.to(torch.int32) - (shift.unsqueeze(1) if transB and shift.dim() else shift)
    product = torch.matmul(left.t() if transA else left, right.t() if transB else right)
    product = product if c is None else product + c
    real = product.to(torch.float32) * (alpha * a_scale * b_scale)
    return real if scale is None else _whole(real, scale, zero, a)


@op("MatMulNBits", 1, domain=MICROSOFT)
def mat_mul_n_bits(
    a: Tensor, b: Tensor, scales: Tensor, zeros: Tensor | None = None, order: Tensor | None = None,
    bias: Tensor | None = None, *,
    K: int,  # noqa: N803 - ONNX Runtime's names
    N: int,  # noqa: N803
    bits: int,
    block_size: int,
    accuracy_level: int,
) -> Tensor:  # fmt: skip
    """Multiply by a matrix of 4 or 8 bits a number, whose blocks have scales and zero points."""
    if order is not None or bits not in (4, 8):
        raise ValueError(f"{bits} bits a number{', in an order of their own' if order is not None else ''}")
    blocks = -(-K // block_size)
    values = _unpacked(b.reshape(N, -1), bits).reshape(N, blocks, block_size).to(scales.dtype)
    middle = 2 ** (bits - 1)
    if zeros is None:
        shift: Tensor | float = float(middle)
    elif zeros.is_floating_point():
        shift = zeros.reshape(N, blocks, 1)
    else:
        shift = _unpacked(zeros.reshape(N, -1), bits)[:, :blocks].unsqueeze(2).to(scales.dtype)
    matrix = ((values - shift) * scales.reshape(N, blocks, 1)).reshape(N, -1)[:, :K]
    return F.linear(a, matrix.to(a.dtype), bias)


def _unpacked(x: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return x
    return torch.stack([x & 15, x >> 4], -1).flatten(-2)
