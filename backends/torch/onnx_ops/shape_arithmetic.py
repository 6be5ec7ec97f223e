"""Arithmetic on shapes: what models do to the results of ``Shape``, done on numbers before any tensor is made.

A *host value* is a numpy array of numbers, of dtype object where some of them are symbols of ``torch.export``. So a
dimension stays a dimension from ``Shape`` through ``Gather``, ``Mul`` and ``Concat`` to the ``Reshape`` that uses it,
and a written stage says ``x.size(0)`` there.

Left out: ops that models do not apply to shapes; what takes them gets a tensor.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import SymBool, SymFloat, SymInt, Tensor

from .dtypes import TORCH_TYPES

Host = NDArray[Any]

Given = Host | Sequence[int] | None
"""Numbers that opsets of today take as an input, and those before as an attribute of the same name."""

_symbolic: Any = torch  # its sym_ functions have no types

_NUMBER_TYPES = {6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64}

_NUMBERS_OF_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "bool": 9, "float16": 10, "float64": 11,
}  # fmt: skip

LARGEST = 1024
"""Constants of more elements are tensors from the start."""


def host_array(numbers: Sequence[Any]) -> Host:
    """Return numbers as an array of rank 1, symbols among them as they are."""
    if not any(isinstance(n, (SymInt, SymFloat, SymBool)) for n in numbers):
        return np.array(numbers, np.int64 if not numbers else None)
    made = np.empty(len(numbers), object)
    for i, n in enumerate(numbers):
        made[i] = n
    return made


def number_of(value: Any) -> int:
    """Return ONNX's data type of a host value of which the model does not tell: int64 where it is of symbols."""
    return _NUMBERS_OF_TYPES.get(np.asarray(value).dtype.name, 7)


def host_tensor(array: Host, number: int, device: torch.device | None) -> Tensor:
    """Return a host value as a tensor of an ONNX data type, made by ops that ``torch.export`` can follow."""
    dtype = TORCH_TYPES[number]
    scalars = [torch.full((), n, dtype=dtype, device=device) for n in array.reshape(-1).tolist()]
    if array.ndim == 0:
        return scalars[0]
    if not scalars:
        return torch.empty(array.shape, dtype=dtype, device=device)
    stacked = torch.stack(scalars)
    return stacked if array.ndim == 1 else stacked.reshape(array.shape)


def _both(a: Host, b: Host) -> tuple[Host, Host]:
    # numpy's own integers do not know symbols, Python's do
    return (a.astype(object), b.astype(object)) if object in (a.dtype, b.dtype) else (a, b)


def _binary(function: Callable[[Any, Any], Any]) -> Callable[..., Host]:
    def run(a: Host, b: Host, **_: Any) -> Host:
        x, y = _both(a, b)
        if x.dtype != object:
            return np.asarray(function(x, y))
        x, y = np.broadcast_arrays(x, y)
        made = np.empty(x.shape, object)
        for place in np.ndindex(x.shape):
            made[place] = function(x[place], y[place])
        return made

    return run


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, np.ndarray) and a.dtype.kind == "f":
        return a / b
    if isinstance(a, np.ndarray):
        return np.asarray(np.trunc(a / b), a.dtype) if (np.asarray(a) < 0).any() else a // b
    return a // b if isinstance(a, (int, SymInt)) else a / b


def _pick(condition: Any, a: Any, b: Any) -> Host:
    x, y = _both(a, b)
    chosen, x, y = np.broadcast_arrays(condition, x, y)
    made = np.empty(x.shape, x.dtype)
    for place in np.ndindex(x.shape):
        made[place] = x[place] if bool(chosen[place]) else y[place]
    return made


def _cast(x: Host, *, to: int, saturate: int = 1, round_mode: str = "up") -> Host:
    is_float = TORCH_TYPES[to].is_floating_point
    if x.dtype != object:
        return x.astype(_NUMBER_TYPES.get(to, np.float32 if is_float else np.int64))
    made = np.empty(x.shape, object)
    for place in np.ndindex(x.shape):
        n = _symbolic.sym_ite(x[place], 1, 0) if isinstance(x[place], SymBool) else x[place]
        made[place] = (_symbolic.sym_float(n) if is_float else n) if isinstance(n, SymInt) else _number(n, is_float)
    return made


def _number(n: Any, is_float: bool) -> Any:
    if isinstance(n, SymFloat):
        return n if is_float else _symbolic.sym_int(n)
    return float(n) if is_float else int(n)


def _rounded(function: Callable[[Any], Any], on_array: Callable[[Any], Any]) -> Callable[..., Host]:
    def run(x: Host, **_: Any) -> Host:
        if x.dtype != object:
            return np.asarray(on_array(x))
        return np.asarray(np.frompyfunc(lambda n: n if isinstance(n, (int, SymInt)) else function(n), 1, 1)(x))

    return run


def _numbers(given: Given) -> list[Any]:
    return np.asarray(() if given is None else given).reshape(-1).tolist()


def _slice(
    x: Host, starts: Given = None, ends: Given = None, axes: Given = None, steps: Given = None, **_: Any
) -> Host:
    first, last = _numbers(starts), _numbers(ends)
    stride = [1] * len(first) if steps is None else _numbers(steps)
    made = x
    for i, axis in enumerate(range(len(first)) if axes is None else _numbers(axes)):
        index = [slice(None)] * x.ndim
        index[axis] = slice(first[i], last[i] if last[i] >= -x.shape[axis] else None, stride[i])
        made = made[tuple(index)]
    return made


def _squeeze(x: Host, axes: Given = None, **_: Any) -> Host:
    along = _numbers(axes)
    return x.squeeze(tuple(along)) if along else x.squeeze()


def _unsqueeze(x: Host, axes: Given = None, **_: Any) -> Host:
    return np.expand_dims(x, tuple(_numbers(axes)))


def _reshape(x: Host, shape: Host, **_: Any) -> Host:
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(int(n) for n in shape)])


def _reduce(function: Callable[[Any, Any], Any], start: int) -> Callable[..., Host]:
    def run(x: Host, axes: Given = None, **attributes: Any) -> Host:
        along = tuple(_numbers(axes)) or tuple(range(x.ndim))
        if not _numbers(axes) and attributes.get("noop_with_empty_axes"):
            return x
        made = np.apply_over_axes(lambda a, axis: _fold(a, axis, function, start), x, along)
        return np.asarray(made if attributes.get("keepdims", 1) else made.squeeze(along))

    return run


def _fold(a: Host, axis: Any, function: Callable[[Any, Any], Any], start: int) -> Host:
    total: Any = np.full(np.delete(np.array(a.shape), axis), start, a.dtype)
    for part in np.moveaxis(a, axis, 0):
        total = _binary(function)(np.asarray(total), np.asarray(part))
    return np.asarray(total)


def _concat(*xs: Host, axis: int = 0, **_: Any) -> Host:
    wanted = object if any(x.dtype == object for x in xs) else None
    return np.concatenate([x.astype(wanted) if wanted else x for x in xs], axis)


SHAPE_ARITHMETIC: Mapping[str, Callable[..., Host]] = MappingProxyType(
    {
        "Add": _binary(operator.add),
        "Sub": _binary(operator.sub),
        "Mul": _binary(operator.mul),
        "Div": _binary(_divide),
        "Min": _binary(lambda a, b: np.minimum(a, b) if isinstance(a, np.ndarray) else _symbolic.sym_min(a, b)),
        "Max": _binary(lambda a, b: np.maximum(a, b) if isinstance(a, np.ndarray) else _symbolic.sym_max(a, b)),
        "Equal": _binary(operator.eq),
        "Less": _binary(operator.lt),
        "LessOrEqual": _binary(operator.le),
        "Greater": _binary(operator.gt),
        "GreaterOrEqual": _binary(operator.ge),
        "And": _binary(operator.and_),
        "Or": _binary(operator.or_),
        "Not": lambda x, **_: np.asarray(np.frompyfunc(_symbolic.sym_not, 1, 1)(x)) if x.dtype == object else ~x,
        "Where": lambda condition, a, b, **_: _pick(condition, a, b),
        "Neg": lambda x, **_: -x,
        "Floor": _rounded(math.floor, np.floor),
        "Ceil": _rounded(math.ceil, np.ceil),
        "Cast": _cast,
        "Identity": lambda x, **_: x,
        "Concat": _concat,
        "Gather": lambda x, i, *, axis=0, **_: np.asarray(x.take(i.astype(np.int64), axis=axis)),
        "Slice": _slice,
        "Squeeze": _squeeze,
        "Unsqueeze": _unsqueeze,
        "Reshape": _reshape,
        "ReduceProd": _reduce(operator.mul, 1),
        "ReduceSum": _reduce(operator.add, 0),
    }
)
"""What each op does to host values."""
