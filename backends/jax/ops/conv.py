"""Convolutions over any number of spatial dimensions, channels first.

Left out: quantised convolutions (``quantize.py``).
"""

import itertools

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from .known import Array


def edges(
    auto_pad: str, pads: tuple[int, ...] | None, size: tuple[int, ...], window: list[int], strides: tuple[int, ...]
) -> list[tuple[int, int]]:
    """Return the padding at both ends of every spatial dimension; ``window`` is what a dilated kernel covers."""
    rank = len(window)
    if auto_pad in ("NOTSET", "VALID"):
        given = (0,) * 2 * rank if pads is None or auto_pad == "VALID" else pads
        return list(zip(given[:rank], given[rank:], strict=True))
    needed = [
        max((-(-length // step) - 1) * step + cover - length, 0)
        for length, cover, step in zip(size, window, strides, strict=True)
    ]
    if auto_pad == "SAME_LOWER":
        return [(-(-pad // 2), pad // 2) for pad in needed]
    return [(pad // 2, -(-pad // 2)) for pad in needed]


def conv(
    x: Array, w: Array, b: Array | None = None, *,
    auto_pad: str = "NOTSET", dilations: tuple[int, ...] | None = None, group: int = 1,
    kernel_shape: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Convolve x[N, C, ...] with w[M, C / group, ...] and add b[M]."""
    del kernel_shape  # w has it
    rank = w.ndim - 2
    step, gap = strides or (1,) * rank, dilations or (1,) * rank
    window = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], gap, strict=True)]
    padding = edges(auto_pad, pads, x.shape[2:], window, step)
    y = lax.conv_general_dilated(x, w, step, padding, rhs_dilation=gap, feature_group_count=group)
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def conv_transpose(
    x: Array, w: Array, b: Array | None = None, *,
    auto_pad: str = "NOTSET", dilations: tuple[int, ...] | None = None, group: int = 1,
    kernel_shape: tuple[int, ...] | None = None, output_padding: tuple[int, ...] | None = None,
    output_shape: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Return the gradient of a convolution: x[N, C, ...] with w[C, M / group, ...], plus b[M]."""
    del kernel_shape  # w has it
    rank = w.ndim - 2
    step, gap = strides or (1,) * rank, dilations or (1,) * rank
    extra = output_padding or (0,) * rank
    window = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], gap, strict=True)]
    full = [s * (n - 1) + e + k for s, n, e, k in zip(step, x.shape[2:], extra, window, strict=True)]
    if output_shape is None and auto_pad.startswith("SAME"):
        output_shape = tuple(n * s for n, s in zip(x.shape[2:], step, strict=True))
    if output_shape is not None:
        total = [f - o for f, o in zip(full, output_shape[-rank:], strict=True)]
        cut = [(t - t // 2, t // 2) if auto_pad != "SAME_UPPER" else (t // 2, t - t // 2) for t in total]
    else:
        cut = edges(auto_pad, pads, x.shape[2:], window, step)
    padding = [(k - 1 - a, k - 1 - z + e) for k, (a, z), e in zip(window, cut, extra, strict=True)]
    inputs, outputs = w.shape[0] // group, w.shape[1]
    kernel = jnp.flip(w, range(2, w.ndim)).reshape(group, inputs, outputs, *w.shape[2:])
    kernel = jnp.swapaxes(kernel, 1, 2).reshape(group * outputs, inputs, *w.shape[2:])
    y = lax.conv_general_dilated(
        x, kernel, (1,) * rank, padding, lhs_dilation=step, rhs_dilation=gap, feature_group_count=group
    )
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def causal_conv_with_state(
    x: Array, w: Array, b: Array | None = None, past_state: Array | None = None, *,
    activation: str = "none", outputs: int = 1,
) -> Array:  # fmt: skip
    """Convolve every channel with the past alone; also give the last elements, the past of what follows."""
    length = w.shape[2] - 1
    past = jnp.zeros((*x.shape[:2], length), x.dtype) if past_state is None else past_state
    extended = jnp.concatenate([past, x], 2)
    y = conv(extended, w, b, group=x.shape[1])
    if activation in ("silu", "swish"):
        y = jax.nn.silu(y)
    return y if outputs == 1 else (y, extended[:, :, extended.shape[2] - length :])


def deform_conv(
    x: Array, w: Array, offset: Array, b: Array | None = None, mask: Array | None = None, *,
    dilations: tuple[int, ...] | None = None, group: int = 1, kernel_shape: tuple[int, ...] | None = None,
    offset_group: int = 1, pads: tuple[int, ...] | None = None, strides: tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Convolve x[N, C, H, W], reading every element where an offset moves it to, linearly between pixels."""
    del kernel_shape  # w has it
    (high, wide), (n, channels, height, width) = w.shape[2:], x.shape
    step, gap, edge = strides or (1, 1), dilations or (1, 1), pads or (0, 0, 0, 0)
    rows, columns = offset.shape[2:]
    moved = offset.reshape(n, offset_group, high, wide, 2, rows, columns)
    at_y = moved[..., 0, :, :] + (
        np.arange(high)[:, None, None, None] * gap[0] + np.arange(rows)[:, None] * step[0] - edge[0]
    ).astype(x.dtype)
    at_x = moved[..., 1, :, :] + (
        np.arange(wide)[:, None, None] * gap[1] + np.arange(columns) * step[1] - edge[1]
    ).astype(x.dtype)
    planes = x.reshape(n, offset_group, channels // offset_group, height, width)
    read = jax.vmap(jax.vmap(between_pixels))(planes, at_y, at_x)
    if mask is not None:
        read = read * mask.reshape(n, offset_group, 1, high, wide, rows, columns)
    blocks = read.reshape(n, group, channels // group, high, wide, rows, columns)
    kernel = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    y = jnp.einsum("ngchwrs,gochw->ngors", blocks, kernel).reshape(n, w.shape[0], rows, columns)
    return y if b is None else y + b.reshape(-1, 1, 1)


def between_pixels(image: Array, y: Array, x: Array) -> Array:
    """Read image[C, H, W] at fractional places, linearly; zero lies outside."""
    height, width = image.shape[1:]
    y0, x0 = jnp.floor(y), jnp.floor(x)
    result = jnp.zeros((image.shape[0], *y.shape), image.dtype)
    for dy, dx in itertools.product((0, 1), (0, 1)):
        row, column = y0 + dy, x0 + dx
        weight = (1 - jnp.abs(y - row)) * (1 - jnp.abs(x - column))
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        at = (jnp.clip(row, 0, height - 1).astype(int), jnp.clip(column, 0, width - 1).astype(int))
        result = result + jnp.where(inside, weight, 0) * image[:, at[0], at[1]]
    return result
