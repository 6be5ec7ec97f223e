"""Pooling.

Left out: pooling of regions (``geometry.py``).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .table import Ints, op
from .windows import Windows, windows_over

_MAX: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_MAX_WITH_PLACES: dict[int, Callable[..., tuple[Tensor, Tensor]]] = {
    1: F.max_pool1d_with_indices,
    2: F.max_pool2d_with_indices,
    3: F.max_pool3d_with_indices,
}
_AVERAGE: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@op("MaxPool", 1)
def max_pool(
    x: Tensor,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    storage_order: int = 0,
    strides: list[int] | None = None,
    outputs: int,
) -> Tensor | tuple[Tensor, Tensor]:
    windows = windows_over(
        x, kernel_shape, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad, ceil_mode=ceil_mode
    )
    if not x.is_floating_point():
        made = max_pool(
            x.to(torch.float32), kernel_shape=kernel_shape, auto_pad=auto_pad, ceil_mode=ceil_mode,
            dilations=dilations, pads=pads, storage_order=storage_order, strides=strides, outputs=outputs,
        )  # fmt: skip
        return (made[0].to(x.dtype), made[1]) if isinstance(made, tuple) else made.to(x.dtype)
    rank = len(kernel_shape)
    fits = all(2 * p <= k for p, k in zip(windows.before, windows.kernel, strict=True))
    if outputs == 1 and windows.is_symmetric and fits:
        return _MAX[rank](x, windows.kernel, windows.strides, windows.before, windows.dilations)
    padded = windows.pad(x, float("-inf"))
    if outputs == 1:
        return _MAX[rank](padded, windows.kernel, windows.strides, 0, windows.dilations)
    made, places = _MAX_WITH_PLACES[rank](padded, windows.kernel, windows.strides, 0, windows.dilations)
    return made, _places_in_all(places, x, padded, windows, storage_order)


def _places_in_all(places: Tensor, x: Tensor, padded: Tensor, windows: Windows, storage_order: int) -> Tensor:
    """Turn places in a padded plane into places in the whole unpadded tensor."""
    rest, along = places, []
    for size in reversed(padded.shape[2:]):
        along.append(rest % size)
        rest = rest // size
    along = [place - before for place, before in zip(reversed(along), windows.before, strict=True)]
    sizes = list(x.shape[2:])
    if storage_order:
        along, sizes = along[::-1], sizes[::-1]
    flat = torch.zeros_like(places)
    for place, size in zip(along, sizes, strict=True):
        flat = flat * size + place
    planes = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(*x.shape[:2], *[1] * len(sizes))
    return flat + planes * math.prod(sizes)


def _sum_pool(padded: Tensor, windows: Windows) -> Tensor:
    rank = len(windows.kernel)
    if all(d == 1 for d in windows.dilations):
        return _AVERAGE[rank](padded, windows.kernel, windows.strides) * math.prod(windows.kernel)
    ones = torch.ones([1, 1, *windows.kernel], dtype=padded.dtype, device=padded.device)
    planes = padded.reshape(-1, 1, *padded.shape[2:])
    made = _CONV[rank](planes, ones, None, windows.strides, 0, windows.dilations)
    return made.reshape(*padded.shape[:2], *made.shape[2:])


@op("AveragePool", 1)
def average_pool(
    x: Tensor,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    windows = windows_over(
        x, kernel_shape, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad, ceil_mode=ceil_mode
    )
    fits = all(2 * p <= k for p, k in zip(windows.before, windows.kernel, strict=True))
    if windows.is_symmetric and fits and all(d == 1 for d in windows.dilations):
        run = _AVERAGE[len(kernel_shape)]
        return run(x, windows.kernel, windows.strides, windows.before, False, bool(count_include_pad))
    counted = torch.ones_like(x[:1, :1])
    if count_include_pad:
        inner = Windows(
            windows.kernel, windows.strides, windows.dilations, windows.before, windows.after, [0] * len(kernel_shape)
        )
        counted = inner.pad(counted, 1.0)
        outer = Windows(
            windows.kernel,
            windows.strides,
            windows.dilations,
            [0] * len(kernel_shape),
            [0] * len(kernel_shape),
            windows.overhang,
        )
        counted = outer.pad(counted)
    else:
        counted = windows.pad(counted)
    return _sum_pool(windows.pad(x), windows) / _sum_pool(counted, windows)


@op("LpPool", 2)
def lp_pool(
    x: Tensor,
    *,
    kernel_shape: list[int],
    auto_pad: str,
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    p: int,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    windows = windows_over(
        x, kernel_shape, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad, ceil_mode=ceil_mode
    )
    return _sum_pool(windows.pad(x.abs() ** p), windows) ** (1.0 / p)


def _spatial(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


@op("GlobalAveragePool", 1)
def global_average_pool(x: Tensor) -> Tensor:
    return x.mean(_spatial(x), keepdim=True)


@op("GlobalMaxPool", 1)
def global_max_pool(x: Tensor) -> Tensor:
    return x.amax(_spatial(x), keepdim=True)


@op("GlobalLpPool", 2)
def global_lp_pool(x: Tensor, *, p: int) -> Tensor:
    return (x.abs() ** p).sum(_spatial(x), keepdim=True) ** (1.0 / p)


@op("MaxUnpool", 9)
def max_unpool(
    x: Tensor,
    places: Tensor,
    output_shape: Ints | None = None,
    *,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    rank = len(kernel_shape)
    steps, edges = strides or [1] * rank, pads or [0] * 2 * rank
    sizes = [(x.shape[2 + i] - 1) * steps[i] - edges[i] - edges[rank + i] + kernel_shape[i] for i in range(rank)]
    shape = [*x.shape[:2], *sizes]
    flat = torch.zeros(math.prod(shape), dtype=x.dtype, device=x.device)
    made = flat.scatter(0, places.reshape(-1), x.reshape(-1)).reshape(shape)
    if output_shape is None:
        return made
    return F.pad(made, [n for i in reversed(range(rank)) for n in (0, output_shape[2 + i] - sizes[i])])
