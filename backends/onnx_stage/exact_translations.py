"""How PyTorch's exporter is to write ops so that they are PyTorch's at the edges too.

::

    addmm, addmv, addbmm, baddbmm  -> what beta = 0 leaves out is not read: NaN there changes nothing
    floor_divide, div (rounded)    -> rounded after taking the rest off: 0.3 // 0.1 is 2; whole numbers stay whole
    remainder                      -> the exact rest: 0.3 % 0.1 is 0.1
    atan2                          -> the quadrant by the signs, those of zeros too
    heaviside                      -> 0 of NaN
    index_put (a mask, one value)  -> a choice by the mask: no shape depends on it, and gradients pass

Left out: ops that the exporter does not know at all (``missing_translations.py``).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset20
from onnxscript.function_libs.torch_lib.ops import core as _torchlib

_op: Any = opset20  # its ops have no types
_of_exporter: Any = _torchlib
_aten: Any = torch.ops.aten
_prims: Any = torch.ops.prims


def _added_to(x: Any, product: Any, beta: float, alpha: float) -> Any:
    """Return ``beta * x + alpha * product``; what is left out is not read."""
    product = _times(product, alpha, x.dtype)
    return product if beta == 0 else _op.Add(_times(x, beta, x.dtype), product)


def _addmm(x: Any, a: Any, b: Any, beta: float = 1.0, alpha: float = 1.0) -> Any:
    if alpha == 0 and beta != 0:
        rows, columns = _op.Shape(a, start=0, end=1), _op.Shape(b, start=1, end=2)
        return _op.Expand(_times(x, beta, x.dtype), _op.Concat(rows, columns, axis=0))
    if beta == 0 or not x.dtype.is_floating_point():
        return _added_to(x, _op.MatMul(a, b), beta, alpha)
    return _op.Gemm(a, b, x, alpha=float(alpha), beta=float(beta))


def _addmv(x: Any, a: Any, v: Any, beta: float = 1.0, alpha: float = 1.0) -> Any:
    if alpha == 0 and beta != 0:
        return _op.Expand(_times(x, beta, x.dtype), _op.Shape(a, start=0, end=1))
    return _added_to(x, _op.MatMul(a, v), beta, alpha)


def _addbmm(x: Any, a: Any, b: Any, beta: float = 1.0, alpha: float = 1.0) -> Any:
    summed = _op.ReduceSum(_op.MatMul(a, b), _op.Constant(value_ints=[0]), keepdims=0)
    return _added_to(x, summed, beta, alpha)


def _baddbmm(x: Any, a: Any, b: Any, beta: float = 1.0, alpha: float = 1.0) -> Any:
    return _added_to(x, _op.MatMul(a, b), beta, alpha)


def _floor_divided(x: Any, y: Any) -> Any:
    x, y, dtype = _as_tensors(x, y)
    if not dtype.is_floating_point():
        quotient = _op.Div(x, y)
        if not dtype.is_signed():
            return quotient
        is_above = _is_above(_op.Sub(x, _op.Mul(quotient, y)), y, dtype)
        return _op.Sub(quotient, _op.Cast(is_above, to=dtype))
    one = _number(1, dtype)
    rest = _op.Mod(x, y, fmod=1)
    quotient = _op.Div(_op.Sub(x, rest), y)
    quotient = _op.Where(_is_above(rest, y, dtype), _op.Sub(quotient, one), quotient)
    floor = _op.Floor(quotient)
    is_next = _op.Greater(_op.Sub(quotient, floor), _number(0.5, dtype))  # it is whole but for rounding
    whole = _op.Where(is_next, _op.Add(floor, one), floor)
    return _op.Where(_op.Equal(y, _number(0, dtype)), _op.Floor(_op.Div(x, y)), whole)


def _divided(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return _floor_divided(x, y)
    x, y, dtype = _as_tensors(x, y)
    if rounding_mode is None and not dtype.is_floating_point():
        return _op.Div(*(_op.Cast(value, to=ir.DataType.FLOAT) for value in (x, y)))
    quotient = _op.Div(x, y)
    if rounding_mode is None or not dtype.is_floating_point():
        return quotient
    return _op.Where(_op.Less(quotient, _number(0, dtype)), _op.Ceil(quotient), _op.Floor(quotient))


def _rest(x: Any, y: Any) -> Any:
    x, y, dtype = _as_tensors(x, y)
    if not dtype.is_floating_point():
        return _op.Mod(x, y)
    rest = _op.Mod(x, y, fmod=1)
    return _op.Where(_is_above(rest, y, dtype), _op.Add(rest, y), rest)


def _is_above(rest: Any, y: Any, dtype: ir.DataType) -> Any:
    """Say where a rest has the other sign than what was divided by, so that the quotient was rounded up."""
    zero = _number(0, dtype)
    return _op.And(_op.Not(_op.Equal(rest, zero)), _op.Xor(_op.Less(rest, zero), _op.Less(y, zero)))


def _angle(y: Any, x: Any) -> Any:
    zero, one, pi = (_number(number, x.dtype) for number in (0, 1, math.pi))
    both_zero = _op.And(_op.Equal(x, zero), _op.Equal(y, zero))
    both_infinite = _op.And(_op.IsInf(x), _op.IsInf(y))
    across = _op.Where(both_infinite, _op.Sign(x), _op.Where(both_zero, one, x))
    up = _op.Where(both_infinite, _op.Sign(y), y)
    angle = _op.Atan(_op.Div(up, across))
    half_turn = _op.Where(_is_negative(y, zero), _op.Neg(pi), pi)
    return _op.Where(_is_negative(x, zero), _op.Add(angle, half_turn), angle)


def _is_negative(x: Any, zero: Any) -> Any:
    """Say where a sign is set, of zeros too."""
    return _op.Or(_op.Less(x, zero), _op.And(_op.Equal(x, zero), _op.Less(_op.Reciprocal(x), zero)))


def _heaviside(x: Any, of_zero: Any) -> Any:
    zero = _number(0, x.dtype)
    return _op.Where(_op.Equal(x, zero), of_zero, _op.Cast(_op.Greater(x, zero), to=x.dtype))


def _put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    mask = indices[0]
    if len(indices) > 1 or mask is None or mask.dtype != ir.DataType.BOOL or not _is_same_everywhere(x, mask, values):
        return _of_exporter.aten_index_put(x, indices, values, accumulate)
    for _ in range(len(x.shape) - len(mask.shape)):
        mask = _op.Unsqueeze(mask, _op.Constant(value_ints=[-1]))
    return _op.Where(mask, _op.Add(x, values) if accumulate else values, x)


def _is_same_everywhere(x: Any, mask: Any, values: Any) -> bool:
    """Say whether every place that a mask over the first dimensions of x selects is given the same."""
    more = len(values.shape) - (len(x.shape) - len(mask.shape))
    return more <= 0 or (more == 1 and values.shape[0] == 1)


def _times(x: Any, by: float, dtype: ir.DataType) -> Any:
    return x if by == 1 else _op.Mul(x, _number(by, dtype))


def _number(number: float, dtype: ir.DataType) -> Any:
    return _op.Constant(value=ir.tensor(number, dtype=dtype))


def _as_tensors(x: Any, y: Any) -> tuple[Any, Any, ir.DataType]:
    """Return both as values of one type, a Python number in that of the other, and the type."""
    number, tensor = (x, y) if isinstance(x, (int, float)) else (y, x)
    dtype: ir.DataType = tensor.dtype
    if isinstance(number, float) and not dtype.is_floating_point():
        dtype = ir.DataType.FLOAT
        tensor = _op.Cast(tensor, to=dtype)
    if not isinstance(number, (int, float)):
        return x, y, dtype
    constant = _number(number, dtype)
    return (constant, tensor, dtype) if number is x else (tensor, constant, dtype)


EXACT: Mapping[Callable[..., Any], Callable[..., Any]] = {
    _aten.addmm.default: _addmm,
    _aten.addmv.default: _addmv,
    _aten.addbmm.default: _addbmm,
    _aten.baddbmm.default: _baddbmm,
    _aten.floor_divide.default: _floor_divided,
    _aten.floor_divide.Scalar: _floor_divided,
    _aten.div.Tensor_mode: _divided,
    _aten.div.Scalar_mode: _divided,
    _aten.remainder.Tensor: _rest,
    _aten.remainder.Scalar: _rest,
    _aten.remainder.Scalar_Tensor: _rest,
    _prims.remainder.default: _rest,
    _aten.atan2.default: _angle,
    _aten.heaviside.default: _heaviside,
    _aten.index_put.default: _put,
}
"""By op, what writes it."""
