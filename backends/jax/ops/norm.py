"""Normalisations.

Means and variances of half precisions are taken in float32, as ``stash_type`` asks.

Left out: other stash types than float32.
"""

from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from .known import Array, wide


def per_channel(values: Array, x: Array) -> Array:
    """Return a vector in a shape that broadcasts along dimension 1 of x."""
    return values.reshape(-1, *[1] * (x.ndim - 2))


def batch_norm(
    x: Array, scale: Array, b: Array, mean: Array, var: Array, *,
    epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0, spatial: int = 1, outputs: int = 1,
) -> Any:  # fmt: skip
    """Normalise every channel: by given statistics or, in training, by those of x, then give the moved ones too."""
    if not spatial:  # every element of a sample has statistics of its own, and they have its shape
        y = (x - mean) * lax.rsqrt(var + epsilon) * scale + b
        return y if outputs == 1 else (y, *(mean, var, mean, var)[: outputs - 1])
    old = mean, var
    if training_mode:
        over = tuple(axis for axis in range(x.ndim) if axis != 1)
        mean, var = jnp.mean(wide(x), over), jnp.var(wide(x), over)
    scaled = per_channel(scale * lax.rsqrt(var + epsilon), x)
    y = ((x - per_channel(mean, x)) * scaled + per_channel(b, x)).astype(x.dtype)
    if not training_mode:
        return y if outputs == 1 else (y, *(mean, var, mean, var)[: outputs - 1])
    moved = [before * momentum + now * (1 - momentum) for before, now in zip(old, (mean, var), strict=True)]
    results = (y, *(m.astype(o.dtype) for m, o in zip(moved, old, strict=True)))
    return y if outputs == 1 else results[:outputs]


def batch_norm_in_training(
    x: Array, scale: Array | None = None, bias: Array | None = None, mean: Array | None = None,
    var: Array | None = None, *,
    momentum: float, epsilon: float, outputs: int = 1,
) -> Any:  # fmt: skip
    """Normalise every channel by the batch's statistics, as PyTorch does; also move the running ones towards them."""
    over = tuple(axis for axis in range(x.ndim) if axis != 1)
    full = wide(x)
    batch_mean, batch_var = jnp.mean(full, over), jnp.var(full, over)
    y = (full - per_channel(batch_mean, x)) * lax.rsqrt(per_channel(batch_var, x) + epsilon)
    y = y if scale is None else y * per_channel(scale, x)
    y = (y if bias is None else y + per_channel(bias, x)).astype(x.dtype)
    if outputs == 1 or mean is None or var is None:
        return y
    count = x.size // x.shape[1]
    unbiased = batch_var * (count / max(count - 1, 1))  # of which the running variance is made
    moved = [
        ((1 - momentum) * old + momentum * lax.stop_gradient(now)).astype(old.dtype)
        for old, now in ((mean, batch_mean), (var, unbiased))
    ]
    return (y, *moved)[:outputs]


def instance_norm(x: Array, scale: Array, b: Array, *, epsilon: float = 1e-5) -> Array:
    """Normalise every channel of every sample by its own statistics."""
    over = tuple(range(2, x.ndim))
    mean, var = jnp.mean(wide(x), over, keepdims=True), jnp.var(wide(x), over, keepdims=True)
    return ((x - mean) * lax.rsqrt(var + epsilon)).astype(x.dtype) * per_channel(scale, x) + per_channel(b, x)


def layer_norm(
    x: Array, scale: Array, b: Array | None = None, *,
    axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, outputs: int = 1,
) -> Any:  # fmt: skip
    """Normalise over the dimensions from the axis on; also give the mean and the inverse deviation."""
    del stash_type
    over = tuple(range(axis % x.ndim, x.ndim))
    full = wide(x)
    mean = jnp.mean(full, over, keepdims=True)
    inverse = lax.rsqrt(jnp.var(full, over, keepdims=True) + epsilon)
    y = ((full - mean) * inverse).astype(x.dtype) * scale
    y = y if b is None else y + b
    return y if outputs == 1 else (y, mean, inverse)[:outputs]


def rms_norm(x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Array:
    """Divide by the root of the mean square over the dimensions from the axis on."""
    del stash_type
    over = tuple(range(axis % x.ndim, x.ndim))
    full = wide(x)
    inverse = lax.rsqrt(jnp.mean(full * full, over, keepdims=True) + epsilon)
    return ((full * inverse).astype(x.dtype) * scale).astype(scale.dtype)


def normalize_groups(x: Array, num_groups: int, epsilon: float) -> Array:
    """Normalise groups of channels by their own statistics."""
    groups = wide(x).reshape(x.shape[0], num_groups, -1)
    mean, var = jnp.mean(groups, 2, keepdims=True), jnp.var(groups, 2, keepdims=True)
    return ((groups - mean) * lax.rsqrt(var + epsilon)).reshape(x.shape).astype(x.dtype)


def group_norm(
    x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:  # fmt: skip
    """Normalise groups of channels, with a scale and a bias of every channel."""
    del stash_type
    return normalize_groups(x, num_groups, epsilon) * per_channel(scale, x) + per_channel(bias, x)


def group_norm_per_group(x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5) -> Array:
    """Normalise groups of channels, with a scale and a bias of every group."""
    size = x.shape[1] // num_groups
    return group_norm(x, jnp.repeat(scale, size), jnp.repeat(bias, size), num_groups=num_groups, epsilon=epsilon)


def lp_norm(x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """Divide by the p-norm along an axis; zero stays zero."""
    length = jnp.sum(jnp.abs(x) ** p, axis, keepdims=True) ** (1 / p)
    return jnp.where(length == 0, 0, x / jnp.where(length == 0, 1, length)).astype(x.dtype)


def mean_variance_norm(x: Array, *, axes: tuple[int, ...] = (0, 2, 3)) -> Array:
    """Subtract the mean and divide by the deviation over axes."""
    mean = jnp.mean(x, axes, keepdims=True)
    deviation = jnp.sqrt(jnp.mean(x * x, axes, keepdims=True) - mean * mean)
    return (x - mean) / (deviation + np.asarray(1e-9, x.dtype))
