"""Reductions over axes, and running sums and products.

Before opset 13 (ReduceSum) or 18 (the others) the axes are an attribute.

Left out: ArgMax and ArgMin (``gather.py``).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .table import Int, Ints, op

Reduction = Callable[[Tensor, list[int], bool], Tensor]


def _reduce(name: str, axes_as_input_since: int, function: Reduction, alone: Callable[[Tensor], Tensor]) -> None:
    """Put a reduction into the table.

    Args:
        name: Of the op.
        axes_as_input_since: The opset from which the axes are an input.
        function: Of tensor, axes and whether to keep them.
        alone: What it is over no axes at all.
    """

    def by_attribute(x: Tensor, *, axes: list[int] | None = None, keepdims: int = 1) -> Tensor:
        return function(x, axes or list(range(x.dim())), bool(keepdims))

    def by_input(x: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        if not axes and noop_with_empty_axes:
            return alone(x)
        return function(x, axes or list(range(x.dim())), bool(keepdims))

    op(name, 1, widen=True)(by_attribute)
    op(name, axes_as_input_since, widen=True)(by_input)


def _sum(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
    return torch.sum(x, axes, keepdims, dtype=x.dtype) if axes else x


def _mean(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
    if not axes:
        return x
    if x.is_floating_point():
        return torch.mean(x, axes, keepdims)
    return torch.div(_sum(x, axes, keepdims), _count(x, axes), rounding_mode="trunc")


def _count(x: Tensor, axes: list[int]) -> int:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return count


def _product(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = torch.prod(x, axis, keepdims, dtype=x.dtype)
    return x


def _extreme(largest: bool) -> Reduction:
    def run(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
        if x.numel() == 0:
            return _of_nothing(x, axes, keepdims, largest)
        if x.dtype == torch.bool:
            return run(x.to(torch.uint8), axes, keepdims).to(torch.bool)
        return torch.amax(x, axes, keepdims) if largest else torch.amin(x, axes, keepdims)

    return run


def _of_nothing(x: Tensor, axes: list[int], keepdims: bool, largest: bool) -> Tensor:
    reduced = {axis % x.dim() for axis in axes}
    if not any(x.shape[axis] == 0 for axis in reduced):
        return torch.amax(x, axes, keepdims)
    shape = [1 if axis in reduced else n for axis, n in enumerate(x.shape) if keepdims or axis not in reduced]
    if x.dtype == torch.bool:
        return torch.full(shape, not largest, dtype=x.dtype)
    if x.is_floating_point():
        return torch.full(shape, float("-inf") if largest else float("inf"), dtype=x.dtype)
    limits = torch.iinfo(x.dtype)
    return torch.full(shape, limits.min if largest else limits.max, dtype=x.dtype)


def _root_of_squares(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
    squares = _sum(torch.square(x), axes, keepdims)
    return torch.sqrt(squares.to(torch.float64) if not x.is_floating_point() else squares).to(x.dtype)


def _log_sum_exp(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
    return torch.logsumexp(x, axes, keepdims) if axes else x


_reduce("ReduceSum", 13, _sum, lambda x: x)
_reduce("ReduceMean", 18, _mean, lambda x: x)
_reduce("ReduceMax", 18, _extreme(True), lambda x: x)
_reduce("ReduceMin", 18, _extreme(False), lambda x: x)
_reduce("ReduceProd", 18, _product, lambda x: x)
_reduce("ReduceL1", 18, lambda x, axes, keep: _sum(torch.abs(x), axes, keep), torch.abs)
_reduce("ReduceL2", 18, _root_of_squares, torch.abs)
_reduce("ReduceSumSquare", 18, lambda x, axes, keep: _sum(torch.square(x), axes, keep), torch.square)
_reduce("ReduceLogSum", 18, lambda x, axes, keep: torch.log(_sum(x, axes, keep)), torch.log)
_reduce("ReduceLogSumExp", 18, _log_sum_exp, lambda x: x)


def _running(
    x: Tensor, axis: int, exclusive: int, reverse: int, function: Callable[[Tensor, int], Tensor], start: int
) -> Tensor:
    turned = x.flip(axis) if reverse else x
    if exclusive:
        first = torch.full_like(turned.narrow(axis, 0, 1), start)
        turned = torch.cat([first, turned.narrow(axis, 0, x.shape[axis] - 1)], axis)
    made = function(turned, axis).to(x.dtype)
    return made.flip(axis) if reverse else made


@op("CumSum", 11)
def cum_sum(x: Tensor, axis: Int, *, exclusive: int, reverse: int) -> Tensor:
    return _running(x, axis, exclusive, reverse, torch.cumsum, 0)


@op("CumProd", 26)
def cum_prod(x: Tensor, axis: Int, *, exclusive: int, reverse: int) -> Tensor:
    return _running(x, axis, exclusive, reverse, torch.cumprod, 1)
