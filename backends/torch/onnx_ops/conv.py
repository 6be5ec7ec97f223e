"""Convolutions.

Left out: convolutions of quantised tensors (``quantize.py``).
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .table import Ints, op
from .windows import windows_over

_CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


@op("Conv", 1)
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    kernel = list(w.shape[2:])
    windows = windows_over(x, kernel, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
    run = _CONV[len(kernel)]
    if windows.is_symmetric:
        return run(x, w, b, windows.strides, windows.before, windows.dilations, group)
    return run(windows.pad(x), w, b, windows.strides, 0, windows.dilations, group)


@op("ConvTranspose", 1)
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str,
    dilations: list[int] | None = None,
    group: int,
    kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None,
    output_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    rank = w.dim() - 2
    steps, spread = strides or [1] * rank, dilations or [1] * rank
    extra = output_padding or [0] * rank
    before, after = list((pads or [0] * 2 * rank)[:rank]), list((pads or [0] * 2 * rank)[rank:])
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        for i in range(rank):
            size = x.shape[2 + i]
            wanted = output_shape[i - rank] if output_shape else size * steps[i]
            total = steps[i] * (size - 1) + extra[i] + (w.shape[2 + i] - 1) * spread[i] + 1 - wanted
            small, large = total // 2, total - total // 2
            before[i], after[i] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    run = _CONV_TRANSPOSE[rank]
    fits = all(e < max(s, d) for e, s, d in zip(extra, steps, spread, strict=True))
    if before == after and fits and min(before) >= 0:
        return run(x, w, b, steps, before, extra, group, spread)
    whole = run(x, w, None, steps, 0, 0, group, spread)
    ends = [e - a for e, a in zip(extra, after, strict=True)]
    made = F.pad(whole, [n for i in reversed(range(rank)) for n in (-before[i], ends[i])])
    return made if b is None else made + b.reshape([-1] + [1] * rank)


@op("CausalConvWithState", 27)
def causal_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    past: Tensor | None = None,
    *,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """One channel at a time, over what came before only; gives the end of its input for the next call."""
    memory = w.shape[2] - 1
    padded = F.pad(x, [memory, 0]) if past is None else torch.cat([past, x], 2)
    made = F.conv1d(padded, w, b, groups=x.shape[1])
    return made if activation == "none" else F.silu(made), padded[:, :, padded.shape[2] - memory :]


@op("DeformConv", 19)
def deform_conv(
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: list[int] | None = None,
    group: int,
    kernel_shape: list[int] | None = None,
    offset_group: int,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Convolve over places that are each moved by an offset; the input is sampled there, then multiplied."""
    n, channels, height, width = x.shape
    kernel_h, kernel_w = w.shape[2:]
    windows = windows_over(x, [kernel_h, kernel_w], strides=strides, dilations=dilations, pads=pads)
    out_h, out_w = offset.shape[2:]
    taps = kernel_h * kernel_w
    moved = offset.reshape(n * offset_group, taps, 2, out_h, out_w)
    places = []
    for axis, (count, out, size) in enumerate(((kernel_h, out_h, height), (kernel_w, out_w, width))):
        tap = torch.arange(count, device=x.device, dtype=x.dtype) * windows.dilations[axis]
        tap = (tap.unsqueeze(1) if axis == 0 else tap.unsqueeze(0)).expand(kernel_h, kernel_w).reshape(taps, 1, 1)
        start = torch.arange(out, device=x.device, dtype=x.dtype) * windows.strides[axis] - windows.before[axis]
        start = start.unsqueeze(1) if axis == 0 else start
        place = tap + start + moved[:, :, axis]
        places.append(place * 2 / (size - 1) - 1 if size > 1 else place)
    grid = torch.stack([places[1], places[0]], -1).reshape(n * offset_group, taps * out_h, out_w, 2)
    parts = x.reshape(n * offset_group, channels // offset_group, height, width)
    sampled = F.grid_sample(parts, grid, "bilinear", "zeros", align_corners=True)
    sampled = sampled.reshape(n, offset_group, channels // offset_group, taps, out_h, out_w)
    if mask is not None:
        sampled = sampled * mask.reshape(n, offset_group, 1, taps, out_h, out_w)
    columns = sampled.reshape(n, group, channels // group * taps, out_h * out_w)
    weights = w.reshape(group, w.shape[0] // group, -1)
    made = torch.einsum("gok,ngkp->ngop", weights, columns).reshape(n, w.shape[0], out_h, out_w)
    return made if b is None else made + b.reshape(-1, 1, 1)


@op("Col2Im", 18)
def col_to_im(
    x: Tensor,
    image: Ints,
    block: Ints,
    *,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Add up overlapping blocks: a transposed convolution whose kernels each have one 1."""
    rank = len(block)
    steps, spread, edges = strides or [1] * rank, dilations or [1] * rank, pads or [0] * 2 * rank
    counts = [
        (image[i] + edges[i] + edges[rank + i] - (block[i] - 1) * spread[i] - 1) // steps[i] + 1 for i in range(rank)
    ]
    taps = 1
    for size in block:
        taps *= size
    channels = x.shape[1] // taps
    kernel = (
        torch.eye(taps, dtype=x.dtype, device=x.device).reshape(taps, 1, *block).repeat(channels, *[1] * (rank + 1))
    )
    blocks = x.reshape(x.shape[0], channels * taps, *counts)
    whole = _CONV_TRANSPOSE[rank](blocks, kernel, None, steps, 0, 0, channels, spread)
    crop = [n for i in reversed(range(rank)) for n in (-edges[i], image[i] + edges[i] - whole.shape[2 + i])]
    return F.pad(whole, crop)
