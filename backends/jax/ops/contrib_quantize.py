"""Quantised ops of ONNX Runtime's own domain, ``com.microsoft``: a tensor comes with its scale and zero point.

Left out: products in whole numbers where ONNX Runtime has real ones; kernels on integers.
"""

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from .known import Array
from .pool import average_pool
from .quantize import dequantize_linear, dynamic_quantize_linear, matmul_integer, quantize_linear
from .recurrent import lstm


def whole(x: Array, scale: Array, zero: Array | None, like: Array) -> Array:
    """Quantise to the type of another tensor."""
    return quantize_linear(x, scale, jnp.zeros((), like.dtype) if zero is None else zero)


def q_linear_add(
    a: Array, a_scale: Array, a_zero: Array | None, b: Array, b_scale: Array, b_zero: Array | None, scale: Array,
    zero: Array | None = None,
) -> Array:  # fmt: skip
    """Return a + b."""
    return whole(dequantize_linear(a, a_scale, a_zero) + dequantize_linear(b, b_scale, b_zero), scale, zero, a)


def q_linear_mul(
    a: Array, a_scale: Array, a_zero: Array | None, b: Array, b_scale: Array, b_zero: Array | None, scale: Array,
    zero: Array | None = None,
) -> Array:  # fmt: skip
    """Return a b."""
    return whole(dequantize_linear(a, a_scale, a_zero) * dequantize_linear(b, b_scale, b_zero), scale, zero, a)


def q_linear_sigmoid(x: Array, x_scale: Array, x_zero: Array | None, scale: Array, zero: Array | None = None) -> Array:
    """Return the sigmoid of x."""
    return whole(jax.nn.sigmoid(dequantize_linear(x, x_scale, x_zero)), scale, zero, x)


def q_linear_leaky_relu(
    x: Array, x_scale: Array, x_zero: Array | None, scale: Array, zero: Array | None = None, *, alpha: float = 0.01
) -> Array:
    """Return x, times alpha where it is negative."""
    return whole(jax.nn.leaky_relu(dequantize_linear(x, x_scale, x_zero), alpha), scale, zero, x)


def q_linear_softmax(
    x: Array, x_scale: Array, x_zero: Array | None, scale: Array, zero: Array, *, axis: int = -1, opset: int
) -> Array:
    """Return the softmax along an axis; before opset 13 over all dimensions from the axis on."""
    real, first = dequantize_linear(x, x_scale, x_zero), axis % x.ndim
    over = tuple(range(first, x.ndim)) if opset < 13 else (first,)
    return whole(jax.nn.softmax(real, over), scale, zero, x)


def q_linear_concat(scale: Array, zero: Array, *parts: Array, axis: int) -> Array:
    """Put tensors of different scales beside each other."""
    threes = [parts[i : i + 3] for i in range(0, len(parts), 3)]
    return jnp.concatenate([whole(dequantize_linear(x, s, z), scale, zero, zero) for x, s, z in threes], axis)


def q_linear_where(
    condition: Array, a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, scale: Array,
    zero: Array,
) -> Array:  # fmt: skip
    """Return a where a condition holds, else b."""
    real = jnp.where(condition, dequantize_linear(a, a_scale, a_zero), dequantize_linear(b, b_scale, b_zero))
    return whole(real, scale, zero, a)


def q_linear_global_average_pool(
    x: Array, x_scale: Array, x_zero: Array, scale: Array, zero: Array, *, channels_last: int = 0
) -> Array:
    """Return the mean over all positions."""
    over = tuple(range(1, x.ndim - 1) if channels_last else range(2, x.ndim))
    return whole(jnp.mean(dequantize_linear(x, x_scale, x_zero), over, keepdims=True), scale, zero, x)


def q_linear_average_pool(
    x: Array, x_scale: Array, x_zero: Array | None, scale: Array, zero: Array | None = None, *,
    kernel_shape: tuple[int, ...], auto_pad: str = "NOTSET", ceil_mode: int = 0, channels_last: int = 0,
    count_include_pad: int = 0, pads: tuple[int, ...] | None = None, strides: tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Return the mean of every window."""
    real = dequantize_linear(x, x_scale, x_zero)
    made = average_pool(
        jnp.moveaxis(real, -1, 1) if channels_last else real, kernel_shape=kernel_shape, auto_pad=auto_pad,
        ceil_mode=ceil_mode, count_include_pad=count_include_pad, pads=pads, strides=strides,
    )  # fmt: skip
    return whole(jnp.moveaxis(made, 1, -1) if channels_last else made, scale, zero, x)


def matmul_integer_to_float(
    a: Array, b: Array, a_scale: Array, b_scale: Array, a_zero: Array | None = None, b_zero: Array | None = None,
    bias: Array | None = None,
) -> Array:  # fmt: skip
    """Multiply quantised matrices into real numbers."""
    product = matmul_integer(a, b, a_zero, b_zero).astype(np.float32) * (a_scale * b_scale)
    return product if bias is None else product + bias


def dynamic_quantize_matmul(
    a: Array, b: Array, b_scale: Array, b_zero: Array | None = None, bias: Array | None = None
) -> Array:
    """Quantise a by its own range, and multiply it by a quantised matrix."""
    values, scale, zero = dynamic_quantize_linear(a, outputs=3)
    return matmul_integer_to_float(values, b, scale, b_scale, zero, b_zero, bias)


def dynamic_quantize_lstm(
    x: Array, w: Array, r: Array, b: Array | None, sequence_lens: Array | None, initial_h: Array | None,
    initial_c: Array | None, p: Array | None, w_scale: Array, w_zero: Array, r_scale: Array, r_zero: Array, *,
    activations: tuple[str, ...] | None = None, activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None, clip: float = 0.0, direction: str = "forward",
    hidden_size: int = 0, input_forget: int = 0, outputs: int = 1,
) -> Any:  # fmt: skip
    """Run a long short-term memory on quantised weights; x and every state are rounded by their own range."""

    def rounded(value: Array) -> Array:
        return dequantize_linear(*dynamic_quantize_linear(value, outputs=3))

    def real(weights: Array, scale: Array, zero: Array) -> Array:
        scale, zero = (jnp.reshape(part, (weights.shape[0], 1, -1)) for part in (scale, zero))
        return jnp.swapaxes((weights.astype(jnp.int32) - zero) * scale, 1, 2).astype(x.dtype)

    return lstm(
        rounded(x), real(w, w_scale, w_zero), real(r, r_scale, r_zero), b, sequence_lens, initial_h, initial_c, p,
        activations=activations, activation_alpha=activation_alpha, activation_beta=activation_beta, clip=clip,
        direction=direction, hidden_size=hidden_size, input_forget=input_forget, outputs=outputs, rounded=rounded,
    )  # fmt: skip


def q_gemm(
    a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, c: Array | None = None,
    scale: Array | None = None, zero: Array | None = None, *, alpha: float = 1.0, trans_a: int = 0, trans_b: int = 0,
) -> Array:  # fmt: skip
    """Return alpha a b + c, each of a and b transposed first where asked; quantised where there is a scale."""
    left = a.astype(np.int32) - a_zero.astype(np.int32)
    shift = b_zero.astype(np.int32)
    right = b.astype(np.int32) - (shift[:, None] if trans_b and shift.ndim else shift)
    product = (left.T if trans_a else left) @ (right.T if trans_b else right)
    product = product if c is None else product + c
    real = product.astype(np.float32) * (np.float32(alpha) * a_scale * b_scale)
    return real if scale is None else whole(real, scale, zero, a)


def matmul_n_bits(
    a: Array, b: Array, scales: Array, zeros: Array | None = None, order: Array | None = None,
    bias: Array | None = None, *, k: int, n: int, bits: int = 4, block_size: int, accuracy_level: int = 0,
) -> Array:  # fmt: skip
    """Multiply by a matrix of 4 or 8 bits a number, whose blocks have scales and zero points."""
    del accuracy_level  # a hint for speed
    if order is not None or bits not in (4, 8):
        raise ValueError(f"{bits} bits a number{', in an order of their own' if order is not None else ''}")
    blocks = -(-k // block_size)
    values = unpacked(b.reshape(n, -1), bits).reshape(n, blocks, block_size).astype(scales.dtype)
    if zeros is None:
        shift: Any = 2.0 ** (bits - 1)
    elif jnp.issubdtype(zeros.dtype, jnp.floating):
        shift = zeros.reshape(n, blocks, 1)
    else:
        shift = unpacked(zeros.reshape(n, -1), bits)[:, :blocks, None].astype(scales.dtype)
    matrix = ((values - shift) * scales.reshape(n, blocks, 1)).reshape(n, -1)[:, :k].astype(a.dtype)
    product = a @ matrix.T
    return product if bias is None else product + bias


def unpacked(x: Array, bits: int) -> Array:
    """Return the numbers of 4 bits in bytes, the lower ones first; those of 8 bits are bytes."""
    return x if bits == 8 else jnp.stack([x & 15, x >> 4], -1).reshape(*x.shape[:-1], -1)
