"""Views, slices, transposes, joins, gathers, reductions."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch gives it

from .table import Draw, Drawn, UnfitError, function, op


def _reshape(draw: Draw) -> Drawn:
    x = draw.one(lambda v: 1 < v.numel() <= 4096 and v.dim() > 0)
    shape, numbers = draw.shape(x), []
    rest = math.prod(shape[1:])
    kind = draw.choose("flat", "split", "all", "swap")
    if kind == "flat":
        numbers = [shape[0], -1]
    elif kind == "split":
        factor = next((f for f in (4, 2, 3, 5) if rest % f == 0), None)
        if factor is None:
            raise UnfitError
        numbers = [shape[0], factor, rest // factor]
    elif kind == "swap" and len(shape) >= 3:
        numbers = [shape[0], shape[2], shape[1], *shape[3:]]
    else:
        numbers = [-1, shape[-1]]
    return (x,), {"shape": tuple(numbers), "how": draw.choose("reshape", "view")}


def _permute(draw: Draw) -> Drawn:
    x = draw.one(lambda v: v.dim() >= 2)
    rank = len(draw.shape(x))
    axes = list(range(rank))
    if draw.flip(0.25):
        draw.rng.shuffle(axes)
    else:
        tail = axes[1:]
        draw.rng.shuffle(tail)
        axes = [0, *tail]
    return (x,), {"axes": tuple(axes)}


def _slice(draw: Draw) -> Drawn:
    x = draw.one(lambda v: v.dim() >= 1 and max(v.shape) >= 2)
    axis = draw.axis(x)
    size = draw.shape(x)[axis]
    if size < 2:
        raise UnfitError
    start = draw.choose(0, 1, None, -size + 1)
    stop = draw.choose(size, size - 1 if size > 2 else size, None)
    return (x,), {"axis": axis, "start": start, "stop": stop, "step": draw.choose(1, 1, 2)}


def slice_of(x: Tensor, axis: int, start: int | None, stop: int | None, step: int) -> Tensor:
    """Return a basic slice along one axis."""
    index: list[Any] = [slice(None)] * x.dim()
    index[axis] = slice(start, stop, step)
    return x[tuple(index)]


def _pieces(draw: Draw) -> Drawn:
    x = draw.one(lambda v: v.dim() >= 2)
    axis = draw.axis(x, 1)
    size = draw.shape(x)[axis]
    if size < 2:
        raise UnfitError
    return (x,), {"axis": axis, "kind": draw.choose("chunk", "split", "unbind" if size <= 3 else "chunk", "sizes")}


def _in_pieces(x: Tensor, axis: int, kind: str) -> tuple[Tensor, ...]:
    size = x.shape[axis]
    if kind == "chunk":
        return tuple(x.chunk(2, axis))
    if kind == "split":
        return tuple(x.split(max(1, size // 2), axis))
    return tuple(x.unbind(axis)) if kind == "unbind" else tuple(x.split([1, size - 1], axis))


def _join(draw: Draw) -> Drawn:
    x = draw.floating()
    return (x, draw.like(x)), {"axis": draw.axis(x), "kind": draw.choose("cat", "cat", "stack")}


_MOVES: dict[str, Any] = {
    "unsqueeze": lambda x, axis: x.unsqueeze(axis),
    "squeeze": lambda x, axis: x.squeeze(),
    "flip": lambda x, axis: x.flip(axis),
    "roll": lambda x, axis: x.roll(1, axis),
    "first": lambda x, axis: x.select(axis, 0),
    "last": lambda x, axis: x.select(axis, -1),
    "repeat": lambda x, axis: x.repeat_interleave(2, axis),
    "tile": lambda x, axis: x.repeat(*([2] + [1] * (x.dim() - 1))),
    "expand": lambda x, axis: x.unsqueeze(1).expand(-1, 3, *x.shape[1:]),
    "flatten": lambda x, axis: x.flatten(1) if x.dim() > 1 else x,
    "movedim": lambda x, axis: x.movedim(axis, 0),
    "transpose": lambda x, axis: x.transpose(axis, -1),
    "t": lambda x, axis: x.mT if x.dim() > 1 else x,
    "tril": lambda x, axis: x.tril() if x.dim() > 1 else x,
    "triu": lambda x, axis: x.triu(1) if x.dim() > 1 else x,
    "diagonal": lambda x, axis: x.diagonal(dim1=-2, dim2=-1) if x.dim() > 1 else x,
    "narrow": lambda x, axis: x.narrow(axis, 0, max(1, x.shape[axis] - 1)),
    "unfold": lambda x, axis: x.unfold(axis, 2, 1) if x.shape[axis] >= 2 else x,
    "as_strided": lambda x, axis: (
        torch.as_strided(x, (x.numel() // 2,), (2,)) if x.is_contiguous() and x.numel() > 2 else x
    ),
    "pad": lambda x, axis: F.pad(x, (1, 2)),
    "pad_reflect": lambda x, axis: F.pad(x, (1, 1), mode="reflect") if x.dim() in (2, 3) and x.shape[-1] > 1 else x,
    "cumsum": lambda x, axis: x.cumsum(axis),
    "softmax": lambda x, axis: x.softmax(axis),
    "log_softmax": lambda x, axis: x.log_softmax(axis),
    "normalize": lambda x, axis: F.normalize(x, dim=axis),
    "sorted": lambda x, axis: x.sort(axis).values,
    "cumprod": lambda x, axis: x.cumprod(axis),
    "none_index": lambda x, axis: x[:, None] if x.dim() > 1 else x[None],
    "ellipsis": lambda x, axis: x[..., ::2],
    "list_index": lambda x, axis: x[[0, -1]],
}

_REDUCTIONS: dict[str, Any] = {
    "sum": lambda x, axis, keep: x.sum(axis, keepdim=keep),
    "mean": lambda x, axis, keep: x.mean(axis, keepdim=keep),
    "amax": lambda x, axis, keep: x.amax(axis, keepdim=keep),
    "amin": lambda x, axis, keep: x.amin(axis, keepdim=keep),
    "max": lambda x, axis, keep: x.max(axis, keepdim=keep).values,
    "var": lambda x, axis, keep: x.var(axis, keepdim=keep, unbiased=False),
    "std": lambda x, axis, keep: (x.var(axis, keepdim=keep) + 0.1).sqrt() if x.shape[axis] > 1 else x,
    "norm": lambda x, axis, keep: x.norm(dim=axis, keepdim=keep),
    "logsumexp": lambda x, axis, keep: x.logsumexp(axis, keepdim=keep),
    "prod": lambda x, axis, keep: x.prod(axis, keepdim=keep),
    "all": lambda x, axis, keep: (x > -3).all(axis, keepdim=keep),
    "any": lambda x, axis, keep: (x > 1).any(axis, keepdim=keep),
    "argmax": lambda x, axis, keep: x.argmax(axis, keepdim=keep),
    "whole": lambda x, axis, keep: x.mean(),
    "median": lambda x, axis, keep: x.median(axis, keepdim=keep).values,
}


def _gather(draw: Draw) -> Drawn:
    kind = draw.choose(
        "topk",
        "sort",
        "index_select",
        "gather",
        "scatter_add",
        "index_add",
        "take",
        "one_hot",
        "index_put",
        "bucket",
        "scatter_mean",
    )
    x = draw.float32(2, 3)
    if draw.shape(x)[-1] < 2:
        raise UnfitError
    return (x,), {"kind": kind}


def _gathered(x: Tensor, kind: str) -> Any:
    size = x.shape[-1]
    order = torch.arange(size).flip(0)
    if kind == "topk":
        return tuple(x.topk(2, -1))
    if kind == "sort":
        return tuple(x.sort(-1, descending=True))
    if kind == "index_select":
        return x.index_select(-1, order)
    if kind == "gather":
        return x.gather(-1, x.argsort(-1))
    if kind == "scatter_add":
        return torch.zeros_like(x).scatter_add(-1, (torch.arange(size) % 2).expand_as(x), x)
    if kind == "scatter_mean":
        return torch.ones_like(x).scatter_reduce(-1, (torch.arange(size) % 2).expand_as(x), x, "mean")
    if kind == "index_add":
        return torch.zeros_like(x).index_add(-1, order, x)
    if kind == "take":
        return x[..., order]
    if kind == "one_hot":
        return F.one_hot(x.argmax(-1), size).float() * x
    if kind == "index_put":
        made = x.clone()
        made[:, order[:2]] = 0.5
        return made
    return torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]))


def _matmul(draw: Draw) -> Drawn:
    x = draw.floating(2, 3, 4)
    return (x, draw.like(x)), {"kind": draw.choose("xyt", "einsum", "bmm", "outer")}


def _products(x: Tensor, y: Tensor, kind: str) -> Tensor:
    if kind == "einsum":
        return torch.einsum("...d,...d->...", x, y)
    if kind == "outer":
        return torch.einsum("...i,...j->...ij", x, y)
    made = x @ y.transpose(-1, -2) if kind == "xyt" else x.transpose(-1, -2) @ y
    return made / x.shape[-1]


def _resize(draw: Draw) -> Drawn:
    return (draw.float32(4),), {"mode": draw.choose("nearest", "bilinear"), "by": draw.choose(2, 0.5)}


op("reshape", _reshape, function(lambda x, shape, how: getattr(x, how)(shape)), 3)
op("permute", _permute, function(lambda x, axes: x.permute(axes)), 2)
op("slice", _slice, function(slice_of), 3)
op("pieces", _pieces, function(_in_pieces), 1.5)
op(
    "join",
    _join,
    function(lambda x, y, axis, kind: torch.cat([x, y], axis) if kind == "cat" else torch.stack([x, y], axis)),
    2,
)
op(
    "move",
    lambda d: ((x := d.floating(),), {"axis": d.axis(x), "kind": d.choose(*_MOVES)}),
    function(lambda x, axis, kind: _MOVES[kind](x, axis)),
    5,
)
op(
    "reduce",
    lambda d: ((x := d.floating(2, 3, 4),), {"axis": d.axis(x, 1), "keep": d.flip(), "kind": d.choose(*_REDUCTIONS)}),
    function(lambda x, axis, keep, kind: _REDUCTIONS[kind](x, axis, keep)),
    2.5,
)
op("gather", _gather, function(_gathered), 2)
op("matmul", _matmul, function(_products), 2)
op("interpolate", _resize, function(lambda x, mode, by: F.interpolate(x, scale_factor=by, mode=mode)), 0.7)
