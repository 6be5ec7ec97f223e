"""Pooling over any number of spatial dimensions, channels first.

Left out: regions of interest (``vision.py``).
"""

from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from .conv import edges
from .known import Array, ints, is_whole


def pool_layout(
    x: Array, kernel: tuple[int, ...], strides: tuple[int, ...] | None, dilations: tuple[int, ...] | None,
    pads: tuple[int, ...] | None, auto_pad: str, ceil_mode: int,
) -> tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, int]], list[int]]:  # fmt: skip
    """Return strides, dilations, the padding, and how far every end must be padded beyond it for the last window."""
    rank = len(kernel)
    step, gap = strides or (1,) * rank, dilations or (1,) * rank
    window = [(k - 1) * d + 1 for k, d in zip(kernel, gap, strict=True)]
    padding = edges(auto_pad, pads, x.shape[2:], window, step)
    beyond = [0] * rank
    if ceil_mode and auto_pad in ("NOTSET", "VALID"):
        for i, (before, after) in enumerate(padding):
            span = x.shape[2 + i] + before + after - window[i]
            count = -(-span // step[i]) + 1
            if (count - 1) * step[i] >= x.shape[2 + i] + before:  # a window that starts in the padding does not count
                count -= 1
            beyond[i] = max((count - 1) * step[i] - span, 0)
    return step, gap, padding, beyond


def slide(
    x: Array, start: Any, combine: Any, kernel: tuple[int, ...], step: tuple[int, ...], gap: tuple[int, ...],
    padding: Any,
) -> Array:  # fmt: skip
    """Combine the elements of every window."""
    ones = (1, 1)
    around = [(0, 0), (0, 0), *padding]
    return lax.reduce_window(
        x, np.asarray(start, x.dtype)[()], combine, ones + kernel, ones + step, around, None, ones + gap
    )


def max_pool(
    x: Array, *, kernel_shape: tuple[int, ...], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None, storage_order: int = 0,
    strides: tuple[int, ...] | None = None, outputs: int = 1,
) -> Any:  # fmt: skip
    """Return the largest element of every window, and where it lies in x laid out in memory."""
    step, gap, padding, beyond = pool_layout(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    padding = [(a, z + more) for (a, z), more in zip(padding, beyond, strict=True)]
    lowest = jnp.iinfo(x.dtype).min if is_whole(x) else -jnp.inf
    y = slide(x, lowest, lax.max, kernel_shape, step, gap, padding)
    if outputs == 1:
        return y
    place = np.arange(np.prod(x.shape[2:])).reshape(x.shape[2:], order="F" if storage_order else "C")
    spatial, unused = int(np.prod(x.shape[2:])), np.iinfo(np.int32).max
    place = np.broadcast_to(place.astype(np.int32), x.shape)

    def larger(a: Any, b: Any) -> Any:
        takes_b = (b[0] > a[0]) | ((b[0] == a[0]) & (b[1] < a[1]))
        return jnp.where(takes_b, b[0], a[0]), jnp.where(takes_b, b[1], a[1])

    start = (np.asarray(lowest, x.dtype)[()], np.int32(unused))
    ones, around = (1, 1), [(0, 0), (0, 0), *padding]
    # a window over two arrays has no derivative in jax, and places have none at all
    _, found = lax.reduce_window(
        (lax.stop_gradient(x), jnp.asarray(place)),
        start,
        larger,
        ones + kernel_shape,
        ones + step,
        around,
        None,
        ones + gap,
    )
    plane = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(kernel_shape)) * spatial
    return y, found.astype(int) + plane


def average_pool(
    x: Array, *, kernel_shape: tuple[int, ...], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    count_include_pad: int = 0, dilations: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Return the mean of every window; the padding counts where asked."""
    step, gap, padding, beyond = pool_layout(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    far = [(a, z + more) for (a, z), more in zip(padding, beyond, strict=True)]
    summed = slide(x, 0, lax.add, kernel_shape, step, gap, far)
    ones = jnp.ones((1, 1, *x.shape[2:]), x.dtype)
    if count_include_pad:
        ones = jnp.pad(ones, [(0, 0), (0, 0), *padding], constant_values=1)
        far = [(0, more) for more in beyond]
    return summed / slide(ones, 0, lax.add, kernel_shape, step, gap, far)


def lp_pool(
    x: Array, *, kernel_shape: tuple[int, ...], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None, p: int = 2, pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Return the p-norm of every window."""
    step, gap, padding, beyond = pool_layout(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    far = [(a, z + more) for (a, z), more in zip(padding, beyond, strict=True)]
    return slide(jnp.abs(x) ** p, 0, lax.add, kernel_shape, step, gap, far) ** (1 / p)


def global_average_pool(x: Array) -> Array:
    """Return the mean over all spatial dimensions."""
    return jnp.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True)


def global_max_pool(x: Array) -> Array:
    """Return the largest element over all spatial dimensions."""
    return jnp.max(x, axis=tuple(range(2, x.ndim)), keepdims=True)


def global_lp_pool(x: Array, *, p: int = 2) -> Array:
    """Return the p-norm over all spatial dimensions."""
    return jnp.sum(jnp.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)


def max_unpool(
    x: Array, indices: Array, output_shape: Array | None = None, *,
    kernel_shape: tuple[int, ...], pads: tuple[int, ...] | None = None, strides: tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Put every element back where a max pool took it from, zero elsewhere."""
    rank = len(kernel_shape)
    step, edge = strides or (1,) * rank, pads or (0,) * 2 * rank
    sizes = [(x.shape[2 + i] - 1) * step[i] + kernel_shape[i] - edge[i] - edge[rank + i] for i in range(rank)]
    inferred = (*x.shape[:2], *sizes)
    flat = jnp.zeros(int(np.prod(inferred)), x.dtype).at[indices.reshape(-1)].set(x.reshape(-1)).reshape(inferred)
    if output_shape is None:
        return flat
    return jnp.pad(flat, [(0, wanted - have) for wanted, have in zip(ints(output_shape), inferred, strict=True)])


def local_response(x: Array, *, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0) -> Array:
    """Divide by a power of the sum of squares over neighbouring channels."""
    around = [(0, 0)] * x.ndim
    around[1] = ((size - 1) // 2, size // 2)
    window = (1, size, *[1] * (x.ndim - 2))
    squares = lax.reduce_window(x * x, np.zeros((), x.dtype)[()], lax.add, window, (1,) * x.ndim, around)
    return x / (bias + alpha / size * squares) ** beta
