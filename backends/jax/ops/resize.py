"""Resizing, one axis after the other: every result is a weighted sum of a few elements along the axis.

Which elements and which weights is known before the stage runs, since scales and sizes are.

Left out: scales, sizes or regions of interest that depend on inputs.
"""

from typing import Any

import numpy as np
from jax import numpy as jnp

from .known import Array, ints


def source_places(mode: str, length: int, size: int, scale: float, roi: tuple[float, float]) -> Any:
    """Give, for every index of the result along an axis, the place in the source it is taken from."""
    i, resized = np.arange(size, dtype=np.float64), scale * length
    if mode == "align_corners":
        return i * (length - 1) / (resized - 1) if resized != 1 else np.zeros(size)
    if mode == "asymmetric":
        return i / scale
    if mode == "tf_crop_and_resize":
        span = (roi[1] - roi[0]) * (length - 1)
        return roi[0] * (length - 1) + (i * span / (resized - 1) if resized != 1 else np.full(size, span / 2))
    if mode == "pytorch_half_pixel" and resized == 1:
        return np.full(size, -0.5)
    moved = length / 2 * (1 - size / resized) if mode == "half_pixel_symmetric" else 0.0
    return moved + (i + 0.5) / scale - 0.5


def linear_weight(distance: Any) -> Any:
    """Return the weight of an element at a distance in linear interpolation."""
    return np.clip(1 - np.abs(distance), 0, 1)


def cubic_weight(distance: Any, a: float) -> Any:
    """Return the weight of an element at a distance in cubic interpolation (Keys 1981)."""
    d = np.abs(distance)
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def taps(places: Any, length: int, mode: str, narrow: float, cubic_a: float, exclude_outside: int) -> tuple[Any, Any]:
    """Return the indices[size, n] of the elements each result is made of, and their weights[size, n]."""
    reach = (1 if mode == "linear" else 2) / narrow
    first = np.floor(places - reach).astype(int)
    index = first[:, None] + np.arange(int(np.ceil(2 * reach)) + 2)
    distance = (places[:, None] - index) * narrow
    weight = linear_weight(distance) if mode == "linear" else cubic_weight(distance, cubic_a)
    if exclude_outside:
        weight = np.where((index < 0) | (index >= length), 0, weight)
    weight = weight / weight.sum(1, keepdims=True)
    used = np.any(weight != 0, axis=0)
    return np.clip(index, 0, length - 1)[:, used], weight[:, used]


def nearest(places: Any, length: int, nearest_mode: str) -> Any:
    """Return the index of the element nearest to every place."""
    rounded = {
        "round_prefer_floor": np.ceil(places - 0.5),
        "round_prefer_ceil": np.floor(places + 0.5),
        "floor": np.floor(places),
        "ceil": np.ceil(places),
    }[nearest_mode]
    return np.clip(rounded.astype(int), 0, length - 1)


def resize_axis(x: Array, axis: int, index: Any, weight: Any) -> Array:
    """Return weighted sums of elements along an axis."""
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    parts = (
        jnp.take(x, index[:, k], axis) * weight[:, k].astype(x.dtype).reshape(shape) for k in range(index.shape[1])
    )
    return sum(parts, start=jnp.zeros((), x.dtype))


def resize(
    x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None, *,
    antialias: int = 0, axes: tuple[int, ...] | None = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest", nearest_mode: str = "round_prefer_floor",
) -> Array:  # fmt: skip
    """Resize axes by scales, or to sizes."""
    along = [axis % x.ndim for axis in axes] if axes is not None else list(range(x.ndim))
    lengths = [x.shape[axis] for axis in along]
    if sizes is not None and np.size(sizes):
        wanted = list(ints(sizes))
        factors = [size / length for size, length in zip(wanted, lengths, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            factor = (min if keep_aspect_ratio_policy == "not_larger" else max)(factors)
            factors = [factor] * len(along)
            wanted = [int(np.floor(factor * length + 0.5)) for length in lengths]
    else:
        factors = [float(scale) for scale in np.asarray(scales)]
        wanted = [int(np.floor(factor * length)) for factor, length in zip(factors, lengths, strict=True)]
    region = np.zeros(2 * len(along)) if roi is None or not np.size(roi) else np.asarray(roi, np.float64)
    outside = np.zeros((), bool)
    for n, axis in enumerate(along):
        length, size, factor = lengths[n], wanted[n], factors[n]
        if factor == 1 and coordinate_transformation_mode != "tf_crop_and_resize":
            continue
        bounds = (float(region[n]), float(region[n + len(along)]))
        places = source_places(coordinate_transformation_mode, length, size, factor, bounds)
        if coordinate_transformation_mode == "tf_crop_and_resize":
            beyond = (places < 0) | (places > length - 1)
            outside = outside | beyond.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        if mode == "nearest":
            x = jnp.take(x, nearest(places, length, nearest_mode), axis)
        else:
            narrow = min(factor, 1.0) if antialias else 1.0
            x = resize_axis(x, axis, *taps(places, length, mode, narrow, cubic_coeff_a, exclude_outside))
    return jnp.where(outside, np.asarray(extrapolation_value, x.dtype), x) if outside.any() else x


def upsample(x: Array, scales: Array, *, mode: str = "nearest") -> Array:
    """Resize every axis by a scale, places counted from the first element."""
    factors = np.asarray(scales, np.float64)
    rounding = "floor" if np.all(factors >= 1) else "ceil"
    return resize(
        x, None, factors, mode="nearest" if mode == "nearest" else "linear",
        coordinate_transformation_mode="asymmetric", nearest_mode=rounding,
    )  # fmt: skip
