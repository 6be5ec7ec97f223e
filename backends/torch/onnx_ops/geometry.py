"""Sampling of images on grids and in regions.

Left out: MaxRoiPool, whose rounding no test of ONNX pins down.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .table import Ints, op

_MODES = {
    "linear": "bilinear",
    "cubic": "bicubic",
    "nearest": "nearest",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
}


@op("GridSample", 16)
def grid_sample(x: Tensor, grid: Tensor, *, align_corners: int, mode: str = "linear", padding_mode: str) -> Tensor:
    return F.grid_sample(x, grid, _MODES[mode], padding_mode, bool(align_corners))


@op("AffineGrid", 20)
def affine_grid(theta: Tensor, size: Ints, *, align_corners: int) -> Tensor:
    return F.affine_grid(theta, size, bool(align_corners))


@op("RoiAlign", 10)
def roi_align_old(
    x: Tensor,
    regions: Tensor,
    batch: Tensor,
    *,
    mode: str,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
    spatial_scale: float,
) -> Tensor:
    return roi_align(
        x, regions, batch, coordinate_transformation_mode="output_half_pixel", mode=mode,
        output_height=output_height, output_width=output_width, sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )  # fmt: skip


@op("RoiAlign", 16)
def roi_align(
    x: Tensor,
    regions: Tensor,
    batch: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    """Sample every region at points of its bins, and take their mean or their largest weighted neighbour."""
    shift = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    corners = regions * spatial_scale - shift  # (regions, [x1, y1, x2, y2])
    made = []
    for i in range(regions.shape[0]):
        left, top, right, bottom = corners[i].unbind()
        width, height = right - left, bottom - top
        if not shift:
            width, height = width.clamp(min=1.0), height.clamp(min=1.0)
        rows, y_weights, row_count = _samples(top, height, output_height, x.shape[2], sampling_ratio)
        columns, x_weights, column_count = _samples(left, width, output_width, x.shape[3], sampling_ratio)
        image = x[batch[i]]
        # (channels, points down, 2, points across, 2): the four neighbours of every point
        near = image[:, rows.reshape(-1)][:, :, columns.reshape(-1)].reshape(
            image.shape[0], rows.shape[0], 2, columns.shape[0], 2
        )
        weighed = near * y_weights.reshape(1, -1, 2, 1, 1) * x_weights.reshape(1, 1, 1, -1, 2)
        points = weighed.sum((2, 4)) if mode == "avg" else weighed.amax((2, 4))
        bins = points.reshape(image.shape[0], output_height, row_count, output_width, column_count)
        made.append(bins.mean((2, 4)) if mode == "avg" else bins.amax((2, 4)))
    return torch.stack(made)


def _samples(start: Tensor, length: Tensor, bins: int, size: int, ratio: int) -> tuple[Tensor, Tensor, int]:
    """Return the two neighbours of every sampled point along an axis, their weights, and the points a bin has."""
    per_bin = ratio if ratio > 0 else int((length / bins).ceil().item())
    steps = torch.arange(bins * per_bin, device=start.device, dtype=start.dtype)
    places = start + (steps + 0.5) * length / (bins * per_bin)
    is_inside = (places >= -1.0) & (places <= size)
    places = places.clamp(0, size - 1)
    low = places.floor().clamp(max=size - 1)
    high = (low + 1).clamp(max=size - 1)
    share = places - low
    weights = torch.stack([1 - share, share], 1) * is_inside.unsqueeze(1)
    return torch.stack([low, high], 1).to(torch.int64), weights, per_bin
