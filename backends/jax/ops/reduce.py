"""Ops that reduce dimensions, and sums along one.

Axes come as an attribute in older opsets and as an input, which must be known, in newer ones.

Left out: reductions that are part of another op (``norm.py``, ``loss.py``).
"""

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from .known import Array, ints, is_whole, xp


def axes_of(x: Array, axes: Any, noop_with_empty_axes: int) -> tuple[int, ...]:
    """Return the axes to reduce: where none are given, all or, where so asked, none."""
    given = () if axes is None else ints(axes)
    return given if given or noop_with_empty_axes else tuple(range(x.ndim))


def reduce_sum(x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
    """Return sums."""
    over = axes_of(x, axes, noop_with_empty_axes)
    return xp(x).sum(x, axis=over, keepdims=bool(keepdims), dtype=x.dtype)


def reduce_prod(x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
    """Return products."""
    over = axes_of(x, axes, noop_with_empty_axes)
    return xp(x).prod(x, axis=over, keepdims=bool(keepdims), dtype=x.dtype)


def reduce_mean(x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
    """Return means."""
    over = axes_of(x, axes, noop_with_empty_axes)
    return jnp.mean(x, axis=over, keepdims=bool(keepdims)).astype(x.dtype)


def reduce_max(x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
    """Return the largest elements; of none, the lowest number of the dtype."""
    over = axes_of(x, axes, noop_with_empty_axes)
    if x.dtype == bool:
        return jnp.any(x, axis=over, keepdims=bool(keepdims))
    lowest = jnp.iinfo(x.dtype).min if is_whole(x) else -jnp.inf
    return xp(x).max(x, axis=over, keepdims=bool(keepdims), initial=lowest)


def reduce_min(x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
    """Return the smallest elements; of none, the highest number of the dtype."""
    over = axes_of(x, axes, noop_with_empty_axes)
    if x.dtype == bool:
        return jnp.all(x, axis=over, keepdims=bool(keepdims))
    highest = jnp.iinfo(x.dtype).max if is_whole(x) else jnp.inf
    return xp(x).min(x, axis=over, keepdims=bool(keepdims), initial=highest)


def reduce_l1(x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
    """Return sums of magnitudes."""
    return reduce_sum(jnp.abs(x), axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)


def reduce_l2(x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
    """Return roots of sums of squares; the gradient where all are zero is zero, as PyTorch has it."""
    squares = reduce_sum_square(x, axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)
    roots = jnp.sqrt(jnp.where(squares == 0, 1, squares))
    return jnp.where(squares == 0, 0, roots).astype(x.dtype)


def reduce_sum_square(x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
    """Return sums of squares."""
    return reduce_sum(x * x, axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)


def reduce_log_sum(x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
    """Return logarithms of sums."""
    summed = reduce_sum(x, axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)
    return jnp.log(summed).astype(x.dtype)


def reduce_log_sum_exp(x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
    """Return logarithms of sums of exponentials."""
    over = axes_of(x, axes, noop_with_empty_axes)
    return jax.nn.logsumexp(x, axis=over, keepdims=bool(keepdims)).astype(x.dtype)


def arg_max(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """Return the index of the largest element along an axis: the first, or the last, of equal ones."""
    if not select_last_index:
        return jnp.argmax(x, axis, keepdims=bool(keepdims)).astype(int)
    found = jnp.argmax(jnp.flip(x, axis), axis, keepdims=bool(keepdims))
    return (x.shape[axis] - 1 - found).astype(int)


def arg_min(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """Return the index of the smallest element along an axis: the first, or the last, of equal ones."""
    if not select_last_index:
        return jnp.argmin(x, axis, keepdims=bool(keepdims)).astype(int)
    found = jnp.argmin(jnp.flip(x, axis), axis, keepdims=bool(keepdims))
    return (x.shape[axis] - 1 - found).astype(int)


def running(add_up: Any, first: Any, x: Array, axis: int, exclusive: int, reverse: int) -> Array:
    """Return what a running sum or product is at every index: with the element itself, or before it."""
    axis = axis % x.ndim
    if reverse:
        x = jnp.flip(x, axis)
    if exclusive:
        start = jnp.full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), first, x.dtype)
        x = jnp.concatenate([start, lax.slice_in_dim(x, 0, x.shape[axis] - 1, axis=axis)], axis)
    result = add_up(x, axis, dtype=x.dtype)
    return jnp.flip(result, axis) if reverse else result


def cumulative_sum(x: Array, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Array:
    """Return the running sum along an axis."""
    return running(jnp.cumsum, 0, x, ints(axis)[0], exclusive, reverse)


def cumulative_product(x: Array, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Array:
    """Return the running product along an axis."""
    return running(jnp.cumprod, 1, x, ints(axis)[0], exclusive, reverse)
