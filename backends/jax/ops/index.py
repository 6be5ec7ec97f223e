"""Ops that pick or replace elements by index; a negative index counts from the end.

Left out: ops whose result has as many elements as the data say, unless the data are known.
"""

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from .known import Array, ints, known, xp


def gather(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Take slices along an axis."""
    if known(x, indices):
        return np.take(x, indices, axis)
    return jnp.take(x, from_start(indices, x.shape[axis]), axis)


def from_start(indices: Array, length: int) -> Array:
    """Count indices from the start of an axis."""
    return xp(indices).where(indices < 0, indices + length, indices)


def gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Take, for every index, the element of its own row along an axis."""
    positions = list(jnp.indices(indices.shape, sparse=True))
    positions[axis] = from_start(indices, x.shape[axis])
    return jnp.asarray(x)[tuple(positions)]


def gather_nd(x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """Take the slices that the last dimension of the indices points at."""
    if batch_dims:
        return jax.vmap(lambda one, at: gather_nd(one, at, batch_dims=batch_dims - 1))(x, indices)
    return jnp.asarray(x)[tuple(jnp.moveaxis(jnp.asarray(indices), -1, 0))]


def scatter_elements(x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none") -> Array:
    """Replace, or combine with updates, for every index the element of its own row along an axis."""
    positions = list(jnp.indices(indices.shape, sparse=True))
    positions[axis] = from_start(indices, x.shape[axis])
    return _put(jnp.asarray(x).at[tuple(positions)], updates, reduction)


def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    """Replace, or combine with updates, the slices that the last dimension of the indices points at."""
    return _put(jnp.asarray(x).at[tuple(jnp.moveaxis(jnp.asarray(indices), -1, 0))], updates, reduction)


def _put(place: Any, updates: Array, reduction: str) -> Array:
    how = {"none": place.set, "add": place.add, "mul": place.multiply, "max": place.max, "min": place.min}
    return how[reduction](updates)


def tensor_scatter(
    past_cache: Array, update: Array, write_indices: Array | None = None, *, axis: int = -2, mode: str = "linear"
) -> Array:
    """Write an update into a cache along an axis, from an index of each sample on."""
    cache, new = jnp.moveaxis(past_cache, axis, 1), jnp.moveaxis(update, axis, 1)
    start = jnp.zeros(cache.shape[0], int) if write_indices is None else write_indices
    rows = start[:, None] + jnp.arange(new.shape[1])
    if mode == "circular":
        rows = rows % cache.shape[1]
    written = cache.at[jnp.arange(cache.shape[0])[:, None], rows].set(new)
    return jnp.moveaxis(written, 1, axis)


def one_hot(indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    """Return the second value where the index is, the first elsewhere; an index out of range is nowhere."""
    (count,) = ints(depth)
    rank = np.ndim(indices) + 1
    place = np.arange(count).reshape([-1 if i == axis % rank else 1 for i in range(rank)])
    at = jnp.expand_dims(from_start(jnp.asarray(indices), count), axis % rank)
    return jnp.where(at == place, values[1], values[0])


def top_k(
    x: Array, k: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1, outputs: int = 1  # noqa: A002 - ONNX's name
) -> Any:  # fmt: skip
    """Return the k largest or smallest elements along an axis, in order, and their indices."""
    del sorted  # in order is as good as any
    (count,) = ints(k)
    # sorting is stable: of equal elements the first comes first
    order = jnp.argsort(x, axis, stable=True, descending=bool(largest))
    indices = jax.lax.slice_in_dim(order, 0, count, axis=axis % x.ndim)
    values = jnp.take_along_axis(x, indices, axis)
    return values if outputs == 1 else (values, indices.astype(int))


def last_axis(x: Array, indices: Array) -> Array:
    """Take elements along the last axis."""
    taken = jnp.take(x, indices.reshape(-1), -1)
    return taken.reshape(1, -1) if taken.ndim == 1 else taken


def compress(x: Array, condition: Array, *, axis: int | None = None) -> Array:
    """Take the slices for which a known condition holds."""
    (chosen,) = np.nonzero(np.asarray(condition))
    return xp(x).take(x if axis is not None else x.reshape(-1), chosen, axis or 0)


def non_zero(x: Array) -> Array:
    """Return the indices of what is not zero in known data."""
    return np.array(np.nonzero(np.asarray(x)), np.int64)


def unique(x: Array, *, axis: int | None = None, sorted: int = 1, outputs: int = 1) -> Any:  # noqa: A002 - ONNX's name
    """Return the different elements of known data; their first indices, where each element is among them, counts."""
    values, first, inverse, counts = np.unique(
        np.asarray(x), return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    if not sorted:
        order = np.argsort(first)
        values = np.take(values, order, axis or 0)
        inverse = np.argsort(order)[inverse]
        first, counts = first[order], counts[order]
    results = (values, first, inverse.reshape(-1), counts)
    return results[0] if outputs == 1 else results[:outputs]
