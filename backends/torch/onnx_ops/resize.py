"""Resizing, one axis after the other.

Each axis is resized by a few neighbours of every new place and their weights. Where PyTorch's own ``interpolate``
does the same, that is called.

Left out: nothing of ONNX.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .table import Floats, Ints, op

_KERNEL_SIZE = {"linear": 2, "cubic": 4}
_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@op("Upsample", 7)
def upsample_by_attribute(x: Tensor, *, scales: list[float], mode: str) -> Tensor:
    return upsample(x, scales, mode=mode)


@op("Upsample", 9)
def upsample(x: Tensor, scales: Floats, *, mode: str = "nearest") -> Tensor:
    return resize_asymmetric(x, scales, mode=mode)


@op("Resize", 10)
def resize_asymmetric(x: Tensor, scales: Floats, *, mode: str = "nearest") -> Tensor:
    """Before opset 11 coordinates are divided by the scale, and the nearest one is the lower."""
    return resize(x, None, scales, None, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@op("Resize", 11)
def resize(
    x: Tensor,
    roi: Floats | None = None,
    scales: Floats | None = None,
    sizes: Ints | None = None,
    *,
    antialias: int = 0,
    axes: list[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    along = [axis % x.dim() for axis in axes] if axes else list(range(x.dim()))
    if sizes:
        targets, factors = _from_sizes([x.shape[a] for a in along], sizes, keep_aspect_ratio_policy)
    else:
        factors = [int(f) if isinstance(f, float) and f.is_integer() else f for f in scales or []]
        pairs = zip((x.shape[a] for a in along), factors, strict=True)
        targets = [n * f if isinstance(f, int) else math.floor(n * f) for n, f in pairs]
    is_cropped = coordinate_transformation_mode == "tf_crop_and_resize"
    changed = [i for i, a in enumerate(along) if targets[i] != x.shape[a] or factors[i] != 1 or is_cropped]
    half_pixel = coordinate_transformation_mode in ("half_pixel", "pytorch_half_pixel")
    is_spatial = [along[i] for i in changed] == list(range(2, x.dim())) and x.dim() in (3, 4, 5)
    if mode == "linear" and is_spatial and not antialias and x.is_floating_point() and not exclude_outside:
        wanted = [targets[i] for i in changed]
        if coordinate_transformation_mode == "align_corners" and min(wanted) > 1:
            return F.interpolate(x, wanted, mode=_LINEAR[x.dim() - 2], align_corners=True)
        exact = all(factors[i] * x.shape[along[i]] == targets[i] for i in changed)
        if half_pixel and exact and min(wanted) > 1:
            return F.interpolate(x, wanted, mode=_LINEAR[x.dim() - 2], align_corners=False)
    y = x if x.is_floating_point() else x.to(torch.float32)
    for i in changed:
        axis, size = along[i], x.shape[along[i]]
        region = (0.0, 1.0) if not roi else (roi[i], roi[i + len(along)])
        places = _places(targets[i], size, factors[i], coordinate_transformation_mode, region, x.device)
        if mode == "nearest":
            y = y.index_select(axis, _nearest(places, nearest_mode).clamp(0, size - 1).to(torch.int64))
        else:
            shrink = factors[i] if antialias and factors[i] < 1 else 1.0
            y = _interpolate(y, axis, places, mode, shrink, cubic_coeff_a, bool(exclude_outside))
        if is_cropped:
            outside = ((places < 0) | (places > size - 1)).reshape([-1] + [1] * (x.dim() - axis - 1))
            y = torch.where(outside, extrapolation_value, y)
    if x.is_floating_point():
        return y.to(x.dtype)
    limits = torch.iinfo(x.dtype)
    return y.round().clamp(limits.min, limits.max).to(x.dtype)


def _from_sizes(shape: list[int], sizes: list[int], policy: str) -> tuple[list[int], list[float]]:
    factors = [size / n for size, n in zip(sizes, shape, strict=True)]
    if policy == "stretch":
        return list(sizes), factors
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [math.floor(factor * n + 0.5) for n in shape], [factor] * len(shape)


def _places(
    target: int, size: int, factor: float, how: str, region: tuple[float, float], device: torch.device
) -> Tensor:
    """Return where each new element lies among the old ones."""
    new = torch.arange(target, device=device, dtype=torch.float64)
    exact = factor * size  # may be no whole number
    if how == "align_corners":
        return new * 0 if exact == 1 else new * (size - 1) / (exact - 1)
    if how == "asymmetric":
        return new / factor
    if how == "tf_crop_and_resize":
        first, last = region
        if target == 1:
            return new * 0 + 0.5 * (first + last) * (size - 1)
        return first * (size - 1) + new * (last - first) * (size - 1) / (exact - 1)
    if how == "pytorch_half_pixel" and target == 1:
        return new * 0
    if how == "half_pixel_symmetric":
        return size / 2 * (1 - target / exact) + (new + 0.5) / factor - 0.5
    if how not in ("half_pixel", "pytorch_half_pixel"):
        raise ValueError(f"unknown coordinate_transformation_mode {how!r}")
    return (new + 0.5) / factor - 0.5


def _nearest(places: Tensor, how: str) -> Tensor:
    if how == "floor":
        return places.floor()
    if how == "ceil":
        return places.ceil()
    return (places - 0.5).ceil() if how == "round_prefer_floor" else (places + 0.5).floor()


def _interpolate(
    x: Tensor, axis: int, places: Tensor, mode: str, shrink: float, cubic: float, exclude_outside: bool
) -> Tensor:
    """Weigh the neighbours of every place; where the image shrinks, of a window that is wider by as much."""
    size = x.shape[axis]
    reach = _KERNEL_SIZE[mode] / 2 / shrink
    first = (places - reach).floor() + 1
    count = math.ceil(2 * reach) + (1 if shrink < 1 else 0)
    neighbours = first.unsqueeze(1) + torch.arange(count, device=x.device)
    distance = (neighbours - places.unsqueeze(1)).abs() * shrink
    weights = (1 - distance).clamp(min=0) if mode == "linear" else _cubic(distance, cubic)
    if exclude_outside:
        weights = torch.where((neighbours < 0) | (neighbours >= size), 0.0, weights)
    if exclude_outside or shrink < 1:
        weights = weights / weights.sum(1, keepdim=True)
    chosen = x.index_select(axis, neighbours.clamp(0, size - 1).to(torch.int64).reshape(-1))
    parts = chosen.reshape([*x.shape[:axis], places.shape[0], count, *x.shape[axis + 1 :]])
    shaped = weights.to(x.dtype).reshape([places.shape[0], count] + [1] * (x.dim() - axis - 1))
    return (parts * shaped).sum(axis + 1)


def _cubic(distance: Tensor, a: float) -> Tensor:
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, torch.zeros_like(distance)))
