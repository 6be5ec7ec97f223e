"""Quantised numbers: to and from them, and products of them.

A scale goes with the whole tensor, with an axis, or with blocks along an axis.

Left out: rounding that differs from ONNX's (to the nearest, halves to even).
"""

from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from .conv import conv
from .elementwise import cast
from .known import Array, as_dtype, is_whole


def along(values: Array, x: Array, axis: int, block_size: int) -> Array:
    """Return scales or zero points in a shape that broadcasts with x."""
    values = jnp.asarray(values)
    if values.ndim == 0 or values.size == 1:
        return values.reshape(())
    if block_size:
        repeated = jnp.repeat(values, block_size, axis)
        return lax.slice_in_dim(repeated, 0, x.shape[axis], axis=axis)
    return values.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def quantize_linear(
    x: Array, y_scale: Array, y_zero_point: Array | None = None, *,
    axis: int = 1, block_size: int = 0, output_dtype: Any = None, saturate: int = 1, precision: Any = None,
) -> Array:  # fmt: skip
    """Return x / scale + zero point, rounded and limited to the dtype of the zero point."""
    to = output_dtype or np.uint8
    if y_zero_point is not None:
        to = y_zero_point.dtype
    scale = along(y_scale, x, axis, block_size)
    divided_in = precision or jnp.result_type(scale.dtype, jnp.float32 if is_whole(x) else scale.dtype)
    scaled = (x.astype(divided_in) / scale.astype(divided_in)).astype(jnp.float32)
    if not jnp.issubdtype(to, jnp.integer):
        return cast(scaled, to=to, saturate=saturate)
    whole = jnp.round(scaled)
    if y_zero_point is not None:
        whole = whole + along(jnp.asarray(y_zero_point).astype(jnp.int32), x, axis, block_size)
    limits = jnp.iinfo(to)
    return jnp.clip(whole, int(limits.min), int(limits.max)).astype(jnp.int32).astype(to)


def dequantize_linear(
    x: Array, x_scale: Array, x_zero_point: Array | None = None, *,
    axis: int = 1, block_size: int = 0, output_dtype: Any = None,
) -> Array:  # fmt: skip
    """Return (x - zero point) scale."""
    whole = jnp.asarray(x).astype(jnp.int32 if is_whole(x) else jnp.float32)
    if x_zero_point is not None:
        zero = jnp.asarray(x_zero_point)
        whole = whole - along(zero.astype(whole.dtype), x, axis, block_size)
    scale = along(x_scale, x, axis, block_size)
    to = as_dtype(output_dtype or scale.dtype)
    return (whole.astype(jnp.float32) * scale.astype(jnp.float32)).astype(to)


def dynamic_quantize_linear(x: Array, *, outputs: int = 1) -> Any:
    """Quantise to uint8 with the scale and zero point that fit x; give these too."""
    low, high = jnp.minimum(jnp.min(x), 0), jnp.maximum(jnp.max(x), 0)
    scale = jnp.where(high == low, 1, (high - low) / 255).astype(x.dtype)
    zero = jnp.clip(jnp.round(-low / scale), 0, 255).astype(jnp.uint8)
    y = quantize_linear(x, scale, zero)
    return y if outputs == 1 else (y, scale, zero)[:outputs]


def matmul_integer(a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None) -> Array:
    """Multiply matrices of 8-bit numbers into int32, zero points of rows and columns taken off first."""
    left, right = jnp.asarray(a).astype(jnp.int32), jnp.asarray(b).astype(jnp.int32)
    if a_zero_point is not None:
        zero = jnp.asarray(a_zero_point).astype(jnp.int32)
        left = left - (zero if zero.size == 1 or zero.ndim > 1 else zero[:, None])
    if b_zero_point is not None:
        right = right - jnp.asarray(b_zero_point).astype(jnp.int32)
    return left @ right


def qlinear_matmul(
    a: Array, a_scale: Array, a_zero_point: Array, b: Array, b_scale: Array, b_zero_point: Array,
    y_scale: Array, y_zero_point: Array,
) -> Array:  # fmt: skip
    """Multiply quantised matrices and quantise the product."""
    product = matmul_integer(a, b, a_zero_point, b_zero_point)
    factor = jnp.asarray(a_scale, jnp.float32) * jnp.asarray(b_scale, jnp.float32) / jnp.asarray(y_scale, jnp.float32)
    whole = jnp.round(product * factor) + jnp.asarray(y_zero_point).astype(jnp.int32)
    limits = jnp.iinfo(y_zero_point.dtype)
    return jnp.clip(whole, limits.min, limits.max).astype(y_zero_point.dtype)


def conv_integer(
    x: Array, w: Array, x_zero_point: Array | None = None, w_zero_point: Array | None = None, *,
    auto_pad: str = "NOTSET", dilations: tuple[int, ...] | None = None, group: int = 1,
    kernel_shape: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Convolve 8-bit numbers into int32, zero points taken off first; the padding is the zero point."""
    image, kernel = jnp.asarray(x).astype(jnp.int32), jnp.asarray(w).astype(jnp.int32)
    if x_zero_point is not None:
        image = image - jnp.asarray(x_zero_point).astype(jnp.int32).reshape(())
    if w_zero_point is not None:
        zero = jnp.asarray(w_zero_point).astype(jnp.int32)
        kernel = kernel - (zero.reshape(()) if zero.size == 1 else zero.reshape(-1, *[1] * (w.ndim - 1)))
    return conv(
        image, kernel, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads,
        strides=strides,
    )  # fmt: skip


def qlinear_conv(
    x: Array, x_scale: Array, x_zero_point: Array, w: Array, w_scale: Array, w_zero_point: Array,
    y_scale: Array, y_zero_point: Array, b: Array | None = None, *,
    auto_pad: str = "NOTSET", dilations: tuple[int, ...] | None = None, group: int = 1,
    kernel_shape: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Convolve quantised numbers and quantise the result."""
    product = conv_integer(
        x, w, x_zero_point, w_zero_point, auto_pad=auto_pad, dilations=dilations, group=group,
        kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip
    shape = (-1, *[1] * (x.ndim - 2))
    if b is not None:
        product = product + b.reshape(shape)
    factor = (x_scale * w_scale / y_scale).reshape(shape)
    whole = jnp.round(product * factor) + jnp.asarray(y_zero_point).astype(jnp.int32).reshape(())
    limits = jnp.iinfo(y_zero_point.dtype)
    return jnp.clip(whole, limits.min, limits.max).astype(y_zero_point.dtype)
