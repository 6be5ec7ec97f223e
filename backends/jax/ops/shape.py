"""Ops that look at, make or change shapes and move data about.

Left out: what picks elements by index (``index.py``).
"""

from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from .known import Array, ints, xp


def shape(x: Array, *, start: int = 0, end: int | None = None) -> Array:
    """Return the shape, or a range of it, as known numbers."""
    return np.array(np.shape(x)[start:end], np.int64)


def size(x: Array) -> Array:
    """Return the number of elements, known."""
    return np.int64(np.prod(np.shape(x), dtype=np.int64))


def reshape(x: Array, shape: Array, *, allowzero: int = 0) -> Array:
    """Change the shape; 0 keeps a dimension, -1 is what is left."""
    wanted = [x.shape[i] if dim == 0 and not allowzero else dim for i, dim in enumerate(ints(shape))]
    return xp(x).reshape(x, wanted)


def flatten(x: Array, *, axis: int = 1) -> Array:
    """Make a matrix: the dimensions before the axis, and those from it on."""
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))


def squeeze(x: Array, axes: Array | None = None) -> Array:
    """Drop dimensions of one element."""
    return xp(x).squeeze(x, None if axes is None else ints(axes))


def unsqueeze(x: Array, axes: Array) -> Array:
    """Add dimensions of one element."""
    return xp(x).expand_dims(x, ints(axes))


def transpose(x: Array, *, perm: tuple[int, ...] | None = None) -> Array:
    """Reorder dimensions; by default reverse them."""
    return xp(x).transpose(x, perm)


def expand(x: Array, shape: Array) -> Array:
    """Broadcast x with a shape."""
    return xp(x).broadcast_to(x, np.broadcast_shapes(np.shape(x), ints(shape)))


def concat(*parts: Array, axis: int) -> Array:
    """Join parts along an axis."""
    return xp(*parts).concatenate(parts, axis)


def concat_old(*parts: Array, axis: int = 1) -> Array:
    """Join parts along an axis, that behind the batch where none is named."""
    return xp(*parts).concatenate(parts, axis)


def split(x: Array, split: Array | None = None, *, outputs: int, axis: int = 0, num_outputs: int = 0) -> Any:
    """Cut into parts along an axis: of given sizes, or of equal ones, the last perhaps smaller."""
    del num_outputs  # as many as outputs
    if split is None:
        step = -(-x.shape[axis] // outputs)
        starts = [step * i for i in range(1, outputs)]
    else:
        starts = [int(start) for start in np.cumsum(ints(split))[:-1]]
    parts = xp(x).split(x, starts, axis)
    return parts[0] if outputs == 1 else tuple(parts)


def slice_(x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    """Take ranges of indices, as Python's slices do, with known bounds."""
    first, last = ints(starts), ints(ends)
    along = range(len(first)) if axes is None else ints(axes)
    strides = (1,) * len(first) if steps is None else ints(steps)
    window = [slice(None)] * x.ndim
    for axis, start, stop, step in zip(along, first, last, strides, strict=True):
        beyond = step < 0 and stop < -x.shape[axis]  # runs past the first element, which a slice writes as None
        window[axis] = slice(start, None if beyond else stop, step)
    return x[tuple(window)]


def pad(
    x: Array, pads: Array, constant_value: Array | None = None, axes: Array | None = None, *,
    mode: str = "constant", value: float = 0.0,
) -> Array:  # fmt: skip
    """Pad, or with negative numbers crop, at both ends of axes."""
    amounts = ints(pads)
    along = range(x.ndim) if axes is None else ints(axes)
    before, after = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(along):
        before[axis], after[axis] = amounts[i], amounts[i + len(amounts) // 2]
    cut = tuple(slice(max(-b, 0), size - max(-a, 0)) for b, a, size in zip(before, after, x.shape, strict=True))
    width = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    if mode == "constant":
        filling = value if constant_value is None else xp(constant_value).reshape(constant_value, ())
        return xp(x, filling).pad(x[cut], width, constant_values=filling)
    return xp(x).pad(x[cut], width, mode=mode)


def tile(x: Array, repeats: Array) -> Array:
    """Repeat x along every axis."""
    return xp(x).tile(x, ints(repeats))


def constant(
    *, value: Any = None, value_float: float | None = None, value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None, value_ints: tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Return a constant: the one attribute that is there."""
    if value is not None:
        return value
    floats, whole = (
        (value_floats if value_float is None else value_float),
        (value_ints if value_int is None else value_int),
    )
    return np.asarray(whole, np.int64) if floats is None else np.asarray(floats, np.float32)


def constant_of_shape(shape: Array, *, value: Any = None) -> Array:
    """Fill a shape with a value; known where it is small."""
    wanted = ints(shape)
    filling = np.float32(0) if value is None else np.asarray(value).reshape(())
    return np.full(wanted, filling) if np.prod(wanted) <= 1024 else jnp.full(wanted, filling)


def range_(start: Array, limit: Array, delta: Array) -> Array:
    """Count from start to limit, known."""
    first, last, step = (np.asarray(number).reshape(()) for number in (start, limit, delta))
    count = max(int(np.ceil((last.astype(float) - first) / step)), 0)
    return (first + np.arange(count, dtype=first.dtype) * step).astype(first.dtype)


def eye_like(x: Array, *, dtype: Any = None, k: int = 0) -> Array:
    """Return ones on a diagonal, in the shape of x."""
    rows, columns = np.shape(x)
    return np.eye(rows, columns, k, dtype=x.dtype if dtype is None else dtype)


def triangle(x: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    """Keep the upper or lower triangle of matrices."""
    diagonal = 0 if k is None else ints(k)[0]
    return jnp.triu(x, diagonal) if upper else jnp.tril(x, diagonal)


def depth_to_space(x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Move channels into blocks of pixels."""
    n, c, h, w = x.shape
    b, depth = blocksize, c // blocksize**2
    if mode == "DCR":
        blocks = x.reshape(n, b, b, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, depth, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, depth, h * b, w * b)


def space_to_depth(x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Move blocks of pixels into channels."""
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape(n, c * b * b, h // b, w // b)


def reverse_sequence(x: Array, sequence_lens: Array, *, batch_axis: int = 1, time_axis: int = 0) -> Array:
    """Reverse the first elements of every sequence of a batch."""
    moved = jnp.moveaxis(x, (batch_axis, time_axis), (0, 1))
    step, lengths = jnp.arange(moved.shape[1]), jnp.asarray(sequence_lens)[:, None]
    order = jnp.where(step < lengths, lengths - 1 - step, step)
    reversed_ = jnp.take_along_axis(moved, order.reshape(*order.shape, *[1] * (moved.ndim - 2)), 1)
    return jnp.moveaxis(reversed_, (0, 1), (batch_axis, time_axis))


def center_crop_pad(x: Array, shape: Array, *, axes: tuple[int, ...] | None = None) -> Array:
    """Crop or pad with zeros around the centre, to a shape."""
    for axis, wanted in zip(range(x.ndim) if axes is None else axes, ints(shape), strict=True):
        spare = x.shape[axis] - wanted
        if spare > 0:
            start = spare // 2
            x = lax.slice_in_dim(x, start, start + wanted, axis=axis)
        elif spare < 0:
            width = [(0, 0)] * x.ndim
            width[axis] = (-spare // 2, -spare - -spare // 2)
            x = jnp.pad(x, width)
    return x


def col_to_image(
    x: Array, image_shape: Array, block_shape: Array, *,
    dilations: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Add up columns of blocks where the blocks lie in the image."""
    image, block = ints(image_shape), ints(block_shape)
    rank = len(image)
    step, gap, edge = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * 2 * rank
    padded = [image[i] + edge[i] + edge[i + rank] for i in range(rank)]
    count = [(padded[i] - gap[i] * (block[i] - 1) - 1) // step[i] + 1 for i in range(rank)]
    n, channels = x.shape[0], x.shape[1] // int(np.prod(block))
    columns = x.reshape(n, channels, *block, *count)
    result = jnp.zeros((n, channels, *padded), x.dtype)
    for offset in np.ndindex(*block):
        where = tuple(
            slice(offset[i] * gap[i], offset[i] * gap[i] + step[i] * (count[i] - 1) + 1, step[i]) for i in range(rank)
        )
        result = result.at[:, :, *where].add(columns[:, :, *offset])
    return result[:, :, *(slice(edge[i], edge[i] + image[i]) for i in range(rank))]
