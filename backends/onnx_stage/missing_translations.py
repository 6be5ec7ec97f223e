"""How PyTorch's exporter is to write ops that it does not know and ONNX has others for.

::

    cdist            -> differences of all pairs, and their norm
    searchsorted     -> for every number, how many of the sorted ones are less
    prod (of prims)  -> ReduceProd; what cumprod is made of
    amin, amax       -> ReduceMin, ReduceMax, also of all dimensions; NaN where an element is NaN
    sign             -> Sign, 0 of NaN
    log_sigmoid      -> without a sigmoid, which is 0 below -104
    masked_select    -> Compress of both, broadcast and flat
    unique           -> Unique
    repeat_interleave -> for every place of the result, how many ends of repetitions are before it

Left out: those that it knows and writes otherwise than PyTorch computes them (``exact_translations.py``), and ops that
ONNX has nothing for, which the exporter refuses by name.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset20

from .exact_translations import EXACT

OPSET: int = opset20.version
"""What PyTorch's exporter writes, and what stands below with it."""

_op: Any = opset20  # its ops have no types
_aten: Any = torch.ops.aten
_prims: Any = torch.ops.prims


def _distances(x: Any, y: Any, p: float, compute_mode: Any = None) -> Any:
    del compute_mode  # another way to the same numbers
    differences = _op.Sub(_op.Unsqueeze(x, _ints(-2)), _op.Unsqueeze(y, _ints(-3)))
    last = _ints(-1)
    if p == 0:
        zero = _op.CastLike(_op.Constant(value_float=0.0), differences)
        return _op.ReduceSum(_op.CastLike(_op.Not(_op.Equal(differences, zero)), differences), last, keepdims=0)
    if p == 1:
        return _op.ReduceL1(differences, last, keepdims=0)
    if p == 2:
        return _op.ReduceL2(differences, last, keepdims=0)
    sizes = _op.Abs(differences)
    if math.isinf(p):
        return _op.ReduceMax(sizes, last, keepdims=0)
    power, root = (_op.CastLike(_op.Constant(value_float=number), sizes) for number in (p, 1 / p))
    return _op.Pow(_op.ReduceSum(_op.Pow(sizes, power), last, keepdims=0), root)


def _places(  # noqa: PLR0917 - the op's schema
    boundaries: Any,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    if sorter is not None:
        boundaries = _op.GatherElements(boundaries, sorter, axis=-1)
    if len(boundaries.shape) > 1:  # a row for each of x's
        boundaries = _op.Unsqueeze(boundaries, _ints(-2))
    each = _op.CastLike(_op.Unsqueeze(x, _ints(-1)), boundaries)
    is_before = _op.LessOrEqual(boundaries, each) if right or side == "right" else _op.Less(boundaries, each)
    dtype = ir.DataType.INT32 if out_int32 else ir.DataType.INT64
    return _op.ReduceSum(_op.Cast(is_before, to=dtype), _ints(-1), keepdims=0)


def _product(x: Any, dims: Any, output_dtype: int | None = None) -> Any:
    del output_dtype  # of whole numbers, which the traced op has cast before
    return _op.ReduceProd(x, _ints(*dims), keepdims=0) if dims else x


def _least(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    axes = [_ints(*dim)] if dim else []
    return _or_nan(x, axes, keepdim, _op.ReduceMin(x, *axes, keepdims=int(keepdim)))


def _largest(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    axes = [_ints(*dim)] if dim else []
    return _or_nan(x, axes, keepdim, _op.ReduceMax(x, *axes, keepdims=int(keepdim)))


def _or_nan(x: Any, axes: list[Any], keepdim: bool, found: Any) -> Any:
    """Return what was found, NaN where the elements have one: ONNX Runtime passes over it."""
    if not x.dtype.is_floating_point():
        return found
    has_nan = _op.ReduceMax(_op.Cast(_op.IsNaN(x), to=ir.DataType.INT32), *axes, keepdims=int(keepdim))
    nan = _op.CastLike(_op.Constant(value_float=math.nan), found)
    return _op.Where(_op.Cast(has_nan, to=ir.DataType.BOOL), nan, found)


def _log_sigmoid(x: Any) -> Any:
    zero, one = (_op.CastLike(_op.Constant(value_float=number), x) for number in (0.0, 1.0))
    return _op.Sub(_op.Min(x, zero), _op.Log(_op.Add(one, _op.Exp(_op.Neg(_op.Abs(x))))))


def _sign(x: Any) -> Any:
    sign = _op.Sign(x)
    if not x.dtype.is_floating_point():
        return sign
    return _op.Where(_op.IsNaN(x), _op.CastLike(_op.Constant(value_float=0.0), x), sign)


def _selected(x: Any, mask: Any) -> Any:
    flat = _ints(-1)
    elements = _op.Reshape(_op.Expand(x, _op.Shape(mask)), flat)
    return _op.Compress(elements, _op.Reshape(_op.Expand(mask, _op.Shape(x)), flat), axis=0)


def _unique(x: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:  # noqa: A002
    del sorted, return_inverse, return_counts  # sorted is one of the orders that unsorted may be
    elements, _, places, counts = _op.Unique(x, sorted=1)
    return elements, _op.Reshape(places, _op.Shape(x)), counts


def _repeated(repeats: Any, output_size: Any = None) -> Any:
    numbers = _op.Cast(repeats, to=ir.DataType.INT64)
    ends = _op.CumSum(numbers, _op.Constant(value_int=0))
    total = _op.ReduceSum(numbers, keepdims=0) if output_size is None else output_size
    total = _op.Constant(value_int=total) if isinstance(total, int) else _op.Reshape(total, _op.Constant(value_ints=[]))
    places = _op.Range(_op.Constant(value_int=0), total, _op.Constant(value_int=1))
    is_before = _op.Cast(_op.LessOrEqual(_op.Unsqueeze(ends, _ints(-1)), places), to=ir.DataType.INT64)
    return _op.CastLike(_op.ReduceSum(is_before, _ints(0), keepdims=0), repeats)


def _ints(*numbers: int) -> Any:
    return _op.Constant(value_ints=list(numbers))


MISSING: Mapping[Callable[..., Any], Callable[..., Any]] = {
    _aten._cdist_forward.default: _distances,
    _aten.searchsorted.Tensor: _places,
    _prims.prod.default: _product,
    _aten.amin.default: _least,
    _aten.amax.default: _largest,
    _aten.max.default: _largest,
    _aten.min.default: _least,
    _aten.log_sigmoid.default: _log_sigmoid,
    _aten.sign.default: _sign,
    _aten.sgn.default: _sign,
    _aten.masked_select.default: _selected,
    _aten._unique2.default: _unique,
    _aten.repeat_interleave.Tensor: _repeated,
    **EXACT,
}
"""By op, what writes it."""
