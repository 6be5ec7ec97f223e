"""What gives the elements another arrangement: views, transpositions, concatenation, slices, padding, tiling.

Left out: selection by computed indices (``gather.py``).
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .table import Ints, Scalar, op


@op("Reshape", 5)
def reshape(x: Tensor, shape: Ints, *, allowzero: int = 0) -> Tensor:
    wanted = list(shape)
    if not allowzero:
        # a dimension of the input is kept where 0 stands; a symbol is never 0
        wanted = [x.shape[i] if isinstance(n, int) and n == 0 else n for i, n in enumerate(wanted)]
    if 0 in [n for n in x.shape if isinstance(n, int)]:
        rest = math.prod(n for n in wanted if n != -1)
        wanted = [(0 if rest == 0 else x.numel() // rest) if n == -1 else n for n in wanted]
    return x.reshape(wanted)


@op("Flatten", 1)
def flatten(x: Tensor, *, axis: int) -> Tensor:
    axis = axis + x.dim() if axis < 0 else axis
    if axis == 1 and x.dim() > 1:
        return x.flatten(1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@op("Squeeze", 1)
def squeeze_by_attribute(x: Tensor, *, axes: list[int] | None = None) -> Tensor:
    return squeeze(x, axes)


@op("Squeeze", 13)
def squeeze(x: Tensor, axes: Ints | None = None) -> Tensor:
    if axes is None:
        return x.squeeze()
    return x.squeeze(axes[0]) if len(axes) == 1 else x.squeeze(tuple(axes))


@op("Unsqueeze", 1)
def unsqueeze_by_attribute(x: Tensor, *, axes: list[int]) -> Tensor:
    return unsqueeze(x, axes)


@op("Unsqueeze", 13)
def unsqueeze(x: Tensor, axes: Ints) -> Tensor:
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


@op("Transpose", 1)
def transpose(x: Tensor, *, perm: list[int] | None = None) -> Tensor:
    return x.permute(perm if perm is not None else list(range(x.dim()))[::-1])


@op("Expand", 8)
def expand(x: Tensor, shape: Ints) -> Tensor:
    """Broadcast both ways: a 1 in the shape keeps the tensor's dimension."""
    missing = len(shape) - x.dim()
    sizes = [1] * missing + list(x.shape)
    wanted = [1] * -missing + list(shape)
    return x.expand([_broadcast(size, n) for size, n in zip(sizes, wanted, strict=True)])


def _broadcast(size: int, wanted: int) -> int:
    if isinstance(wanted, int):
        return size if wanted == 1 else wanted
    # a symbol may be 1 when the stage runs: what is not 1 itself stays as it is either way
    return wanted if isinstance(size, int) and size == 1 else size


@op("Tile", 6)
def tile(x: Tensor, repeats: Ints) -> Tensor:
    return x.repeat(repeats) if repeats else x


@op("Concat", 4)
@op("Concat", 1)
def concat(*xs: Tensor, axis: int = 1) -> Tensor:  # the first version names none; later ones must
    return torch.cat(xs, axis)


@op("Split", 2)
def split_by_attribute(x: Tensor, *, axis: int, split: list[int] | None = None, outputs: int) -> tuple[Tensor, ...]:
    return split_by_input(x, split, axis=axis, outputs=outputs)


@op("Split", 13)
def split_by_input(x: Tensor, split: Ints | None = None, *, axis: int = 0, outputs: int) -> tuple[Tensor, ...]:
    return split_into(x, split, axis=axis, outputs=outputs)


@op("Split", 18)
def split_into(
    x: Tensor, split: Ints | None = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int
) -> tuple[Tensor, ...]:
    if split is not None:
        return torch.split(x, split, axis)
    count = num_outputs or outputs
    size = -(-x.shape[axis] // count)
    sizes = [size] * (count - 1)
    return torch.split(x, [*sizes, x.shape[axis] - size * (count - 1)], axis)


@op("Slice", 1)
def slice_by_attributes(x: Tensor, *, starts: list[int], ends: list[int], axes: list[int] | None = None) -> Tensor:
    return slice_(x, starts, ends, axes)


@op("Slice", 10)
def slice_(x: Tensor, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None) -> Tensor:
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        step = 1 if steps is None else steps[i]
        if step > 0:
            index = [slice(None)] * (axis % x.dim()) + [slice(starts[i], ends[i], step)]
            x = x[tuple(index)]
        else:
            chosen = range(*slice(starts[i], _end_backwards(ends[i], x.shape[axis]), step).indices(x.shape[axis]))
            x = x.index_select(axis, torch.arange(chosen.start, chosen.stop, step, device=x.device))
    return x


def _end_backwards(end: int, size: int) -> int | None:
    return None if end < -size else end  # Python has no number for "up to the first element, backwards"


@op("Pad", 2)
def pad_by_attributes(x: Tensor, *, pads: list[int], mode: str, value: float) -> Tensor:
    return pad(x, pads, value, mode=mode)


@op("Pad", 11)
def pad(
    x: Tensor, pads: Ints, value: Scalar | None = None, axes: Ints | None = None, *, mode: str = "constant"
) -> Tensor:
    along = list(range(x.dim())) if axes is None else [axis % x.dim() for axis in axes]
    before = {axis: pads[i] for i, axis in enumerate(along)}
    after = {axis: pads[i + len(along)] for i, axis in enumerate(along)}
    if mode == "constant":
        widths = [n for axis in reversed(range(x.dim())) for n in (before.get(axis, 0), after.get(axis, 0))]
        while len(widths) > 2 and all(isinstance(n, int) and n == 0 for n in widths[-2:]):
            widths = widths[:-2]
        fill = 0.0 if value is None else value
        if isinstance(fill, Tensor):
            inside = F.pad(torch.ones_like(x, dtype=torch.bool), widths)
            return torch.where(inside, F.pad(x, widths), fill.to(x.dtype).reshape(()))
        return F.pad(x, widths, "constant", fill)
    for axis in along:
        if before[axis] or after[axis]:
            x = x.index_select(axis, _source_of_padding(x.shape[axis], before[axis], after[axis], mode, x.device))
    return x


def _source_of_padding(size: int, before: int, after: int, mode: str, device: torch.device) -> Tensor:
    places = torch.arange(-before, size + after, device=device)
    if mode == "edge":
        return places.clamp(0, size - 1)
    if mode == "wrap":
        return places % size
    if mode != "reflect":
        raise ValueError(f"unknown mode {mode!r} of Pad")
    period = max(2 * (size - 1), 1)
    folded = places % period
    return torch.where(folded < size, folded, period - folded)


@op("DepthToSpace", 1)
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c // (b * b), h * b, w * b)


@op("SpaceToDepth", 1)
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode == "CRD":
        return F.pixel_unshuffle(x, blocksize)
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * b * b, h // b, w // b)


@op("CenterCropPad", 18)
def center_crop_pad(x: Tensor, shape: Ints, *, axes: list[int] | None = None) -> Tensor:
    for wanted, axis in zip(shape, range(x.dim()) if axes is None else axes, strict=False):
        size = x.shape[axis]
        if size > wanted:
            x = x.narrow(axis, (size - wanted) // 2, wanted)
        elif size < wanted:
            before = (wanted - size) // 2
            x = pad(x, [before, wanted - size - before], axes=[axis])
    return x


@op("ReverseSequence", 10)
def reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int, time_axis: int) -> Tensor:
    times = torch.arange(x.shape[time_axis], device=x.device)
    ends = lengths.unsqueeze(1)
    source = torch.where(times < ends, ends - 1 - times, times)  # (batch, time)
    if batch_axis > time_axis:
        source = source.t()
    source = source.reshape(source.shape + (1,) * (x.dim() - 2)).expand(x.shape)
    return x.gather(time_axis, source)


@op("Compress", 9)
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    if axis is None:
        x, axis = x.flatten(), 0
    return x.index_select(axis, condition.nonzero().squeeze(1))


@op("TensorScatter", 24)
def tensor_scatter(cache: Tensor, update: Tensor, starts: Tensor | None = None, *, axis: int, mode: str) -> Tensor:
    """Write each sample's update into its cache from its own start on."""
    axis %= cache.dim()
    places = torch.arange(update.shape[axis], device=cache.device)
    places = places.expand(cache.shape[0], -1) if starts is None else places + starts.unsqueeze(1)
    if mode == "circular":
        places = places % cache.shape[axis]
    shape = [cache.shape[0]] + [1] * (cache.dim() - 1)
    shape[axis] = update.shape[axis]
    return cache.scatter(axis, places.reshape(shape).expand(update.shape), update)
