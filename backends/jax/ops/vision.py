"""Sampling of images at places that inputs give, pooling over regions of them, and selection of boxes.

Left out: RoiAlign with a number of samples that depends on the region, unless the regions are known.
"""

import itertools

import jax
import numpy as np
from jax import numpy as jnp

from .known import Array, ints


def affine_grid(theta: Array, size: Array, *, align_corners: int = 0) -> Array:
    """Return the places that an affine transform moves the elements of an image to."""
    spatial = ints(size)[2:]
    steps = [
        np.linspace(-1, 1, length) if align_corners else (2 * np.arange(length) + 1) / length - 1 for length in spatial
    ]
    grid = np.meshgrid(*steps, indexing="ij")
    places = np.stack([*grid[::-1], np.ones(spatial)], -1).astype(theta.dtype)
    return jnp.einsum("nij,...j->n...i", theta, places)


def reflect(x: Array, low: float, high: float) -> Array:
    """Fold what is outside of an interval back into it."""
    span = high - low
    if span == 0:
        return jnp.full_like(x, low)
    turned = jnp.abs(x - low) % (2 * span)
    return low + jnp.where(turned > span, 2 * span - turned, turned)


def cubic_weights(t: Array) -> list[Array]:
    """Return the weights of the four elements around a place (Keys 1981, a = -0.75)."""
    a = -0.75
    near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
    far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (t + 1, 2 - t)]
    return [far[0], *near, far[1]]


def grid_sample(
    x: Array, grid: Array, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Array:  # fmt: skip
    """Read x[N, C, ...] at places between -1 and 1 along every axis."""
    spatial = x.shape[2:]
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    offsets, weights = [], []
    for axis, length in enumerate(spatial):
        at = grid[..., len(spatial) - 1 - axis]
        place = (at + 1) / 2 * (length - 1) if align_corners else ((at + 1) * length - 1) / 2
        low, high = (0.0, length - 1.0) if align_corners else (-0.5, length - 0.5)
        if mode == "nearest":
            place = jnp.round(place)
        if padding_mode == "border":
            beyond = (place < low) | (place > high)
            place = jnp.where(beyond, jnp.clip(place, 0, length - 1), place)
        elif padding_mode == "reflection":
            place = reflect(place, low, high)
        first = jnp.floor(place)
        t = place - first
        taps = {"nearest": [jnp.ones_like(t)], "linear": [1 - t, t], "cubic": cubic_weights(t)}[mode]
        start = first - 1 if mode == "cubic" else first
        offsets.append([start + i for i in range(len(taps))])
        weights.append(taps)
    result = jnp.zeros((), x.dtype)
    for choice in itertools.product(*(range(len(taps)) for taps in weights)):
        index, inside, weight = [], jnp.ones((), bool), jnp.ones((), x.dtype)
        for axis, tap in enumerate(choice):
            length, at = spatial[axis], offsets[axis][tap]
            if padding_mode == "reflection":
                low, high = (0.0, length - 1.0) if align_corners else (-0.5, length - 0.5)
                at = jnp.trunc(reflect(at, low, high))
            elif padding_mode == "zeros":
                inside = inside & (at >= 0) & (at < length)
            index.append(jnp.clip(at, 0, length - 1).astype(int))
            weight = weight * weights[axis][tap]
        read = jax.vmap(lambda image, *at: image[:, *at])(x, *index)
        result = result + jnp.where(inside, weight, 0)[:, None] * read
    return result.astype(x.dtype)


def roi_align(
    x: Array, rois: Array, batch_indices: Array, *,
    coordinate_transformation_mode: str = "half_pixel", mode: str = "avg", output_height: int = 1,
    output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0,
) -> Array:  # fmt: skip
    """Pool every region of x[N, C, H, W] over samples between pixels."""
    shift = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    height, width = x.shape[2:]
    pooled = []
    for i in range(rois.shape[0]):
        x1, y1, x2, y2 = (rois[i, j] * spatial_scale - shift for j in range(4))
        tall, broad = y2 - y1, x2 - x1
        if not shift:
            tall, broad = jnp.maximum(tall, 1.0), jnp.maximum(broad, 1.0)
        counts = [sampling_ratio, sampling_ratio]
        if sampling_ratio <= 0:
            counts = [int(np.ceil(np.asarray(tall) / output_height)), int(np.ceil(np.asarray(broad) / output_width))]
        y = y1 + tall / output_height * (np.arange(output_height)[:, None] + (np.arange(counts[0]) + 0.5) / counts[0])
        z = x1 + broad / output_width * (np.arange(output_width)[:, None] + (np.arange(counts[1]) + 0.5) / counts[1])
        parts = roi_samples(x[batch_indices[i]], y.astype(x.dtype), z.astype(x.dtype), height, width)
        if mode == "avg":
            pooled.append(jnp.mean(sum(parts, start=jnp.zeros((), x.dtype)), (2, 4)))
        else:
            pooled.append(jnp.max(jnp.stack(parts), 0).max((2, 4)))
    return jnp.stack(pooled).astype(x.dtype)


def roi_samples(image: Array, y: Array, x: Array, height: int, width: int) -> list[Array]:
    """Return the four weighted pixels around every sample of image[C, H, W]: [C, rows, samples, columns, samples]."""
    outside_y, outside_x = (y < -1) | (y > height), (x < -1) | (x > width)
    y, x = jnp.clip(y, 0, height - 1), jnp.clip(x, 0, width - 1)
    y0, x0 = jnp.floor(y).astype(int), jnp.floor(x).astype(int)
    ty, tx = y - y0, x - x0
    outside = outside_y[:, :, None, None] | outside_x
    parts: list[Array] = []
    for at_y, wy in ((y0, 1 - ty), (jnp.minimum(y0 + 1, height - 1), ty)):
        for at_x, wx in ((x0, 1 - tx), (jnp.minimum(x0 + 1, width - 1), tx)):
            pixel = image[:, at_y[:, :, None, None], at_x]
            parts.append(jnp.where(outside, 0, wy[:, :, None, None] * wx * pixel))
    return parts


def roi_align_before_16(
    x: Array, rois: Array, batch_indices: Array, *, mode: str = "avg", output_height: int = 1, output_width: int = 1,
    sampling_ratio: int = 0, spatial_scale: float = 1.0,
) -> Array:  # fmt: skip
    """Pool every region, whose corners are not moved by half a pixel."""
    return roi_align(
        x, rois, batch_indices, coordinate_transformation_mode="output_half_pixel", mode=mode,
        output_height=output_height, output_width=output_width, sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )  # fmt: skip


def corners_of(boxes: Array, by_center: int) -> Array:
    """Return boxes as their lower and their upper corner."""
    if by_center:
        return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], 1)


def non_max_suppression(
    boxes: Array, scores: Array, most: Array | None = None, overlap: Array | None = None,
    least_score: Array | None = None, *, center_point_box: int = 0,
) -> Array:  # fmt: skip
    """Return batch, class and index of the known boxes that overlap no better one of their class too much."""
    limit = 0 if most is None else int(np.asarray(most).item())
    allowed = 0.0 if overlap is None else float(np.asarray(overlap).item())
    least = None if least_score is None else float(np.asarray(least_score).item())
    every, kept = np.asarray(scores), []
    for batch, label in np.ndindex(every.shape[:2]):
        corners, values = corners_of(np.asarray(boxes)[batch], center_point_box), every[batch, label]
        areas = (corners[:, 2:] - corners[:, :2]).prod(1)
        chosen: list[int] = []
        for box in np.argsort(-values, kind="stable").tolist():
            if len(chosen) >= limit or (least is not None and values[box] <= least):
                break
            low = np.maximum(corners[chosen, :2], corners[box, :2])
            high = np.minimum(corners[chosen, 2:], corners[box, 2:])
            shared = (high - low).clip(0).prod(1)
            if not (shared > allowed * (areas[chosen] + areas[box] - shared)).any():
                chosen.append(box)
        kept += [[batch, label, box] for box in chosen]
    return np.array(kept, np.int64).reshape(-1, 3)
