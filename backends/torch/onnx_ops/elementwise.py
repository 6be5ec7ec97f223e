"""Arithmetic, comparison and logic, element by element, with broadcasting.

Left out: activations (``activation.py``).
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .table import Scalar, op


def _unary(name: str, since: int, function: Callable[[Tensor], Tensor]) -> None:
    def run(x: Tensor) -> Tensor:
        return function(x)

    op(name, since, widen=True)(run)


def _binary(name: str, since: int, function: Callable[[Any, Any], Any]) -> None:
    """Put an op into the table that takes a number as either operand, though not as both."""

    def run(a: Scalar, b: Scalar) -> Tensor:
        result: Tensor = function(a, b)
        return result

    op(name, since, widen=True)(run)


def _on_tensors(name: str, since: int, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    def run(a: Tensor, b: Tensor) -> Tensor:
        return function(a, b)

    op(name, since, widen=True)(run)


def _variadic(name: str, since: int, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    def run(*xs: Tensor) -> Tensor:
        return functools.reduce(function, xs)

    op(name, since, widen=True)(run)


def _divide(a: Any, b: Any) -> Any:
    whole = next(x for x in (a, b) if isinstance(x, Tensor))
    if whole.is_floating_point():
        return a / b
    return torch.div(a if isinstance(a, Tensor) else torch.full_like(whole, a), b, rounding_mode="trunc")


def _power(a: Any, b: Any) -> Any:
    if not isinstance(a, Tensor):
        return torch.full((), a, dtype=b.dtype, device=b.device) ** b
    result = a**b
    return result if result.dtype == a.dtype else result.to(a.dtype)


def _shifted(a: Tensor, b: Tensor, *, direction: str) -> Tensor:
    wide_a, wide_b = a.to(torch.int64), b.to(torch.int64)
    if direction == "LEFT":
        return (wide_a << wide_b).to(a.dtype)
    if a.dtype == torch.uint64:  # an arithmetic shift would fill with the top bit
        keep = (torch.ones_like(wide_b) << (64 - wide_b).clamp(1, 63)) - 1
        return torch.where(wide_b == 0, wide_a, (wide_a >> wide_b) & keep).to(a.dtype)
    return (wide_a >> wide_b).to(a.dtype)


# op, since which opset, what it is in PyTorch
_unary("Abs", 6, torch.abs)
_unary("Acos", 7, torch.acos)
_unary("Acosh", 9, torch.acosh)
_unary("Asin", 7, torch.asin)
_unary("Asinh", 9, torch.asinh)
_unary("Atan", 7, torch.atan)
_unary("Atanh", 9, torch.atanh)
_unary("BitwiseNot", 18, torch.bitwise_not)
_unary("Ceil", 6, torch.ceil)
_unary("Cos", 7, torch.cos)
_unary("Cosh", 9, torch.cosh)
_unary("Det", 11, torch.linalg.det)
_unary("Erf", 9, torch.erf)
_unary("Exp", 6, torch.exp)
_unary("Floor", 6, torch.floor)
_unary("Identity", 1, lambda x: x)
_unary("IsNaN", 9, torch.isnan)
_unary("Log", 6, torch.log)
_unary("Neg", 6, torch.neg)
_unary("Not", 1, torch.logical_not)
_unary("Reciprocal", 6, torch.reciprocal)
_unary("Round", 11, torch.round)
_unary("Sign", 9, torch.sign)
_unary("Sin", 7, torch.sin)
_unary("Sinh", 9, torch.sinh)
_unary("Sqrt", 6, torch.sqrt)
_unary("Tan", 7, torch.tan)
_unary("Tanh", 6, torch.tanh)

_binary("Add", 7, lambda a, b: a + b)
_binary("Sub", 7, lambda a, b: a - b)
_binary("Mul", 7, lambda a, b: a * b)
_binary("Div", 7, _divide)
_binary("Pow", 7, _power)
_binary("Equal", 7, lambda a, b: a == b)
_binary("Less", 7, lambda a, b: a < b)
_binary("LessOrEqual", 12, lambda a, b: a <= b)
_binary("Greater", 7, lambda a, b: a > b)
_binary("GreaterOrEqual", 12, lambda a, b: a >= b)

_on_tensors("And", 7, torch.logical_and)
_on_tensors("Or", 7, torch.logical_or)
_on_tensors("Xor", 7, torch.logical_xor)
_on_tensors("BitwiseAnd", 18, torch.bitwise_and)
_on_tensors("BitwiseOr", 18, torch.bitwise_or)
_on_tensors("BitwiseXor", 18, torch.bitwise_xor)

_variadic("Sum", 6, lambda a, b: a + b)
_variadic("Max", 6, torch.maximum)
_variadic("Min", 6, torch.minimum)


@op("Mean", 6)
def mean(*xs: Tensor) -> Tensor:
    return functools.reduce(lambda a, b: a + b, xs) / len(xs)


op("BitShift", 11)(_shifted)


@op("Mod", 10, widen=True)
def mod(a: Tensor, b: Tensor, *, fmod: int) -> Tensor:
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


@op("IsInf", 10)
def is_inf(x: Tensor, *, detect_negative: int, detect_positive: int) -> Tensor:
    if x.dtype.itemsize == 1:  # no 8-bit float's kernel knows of infinity
        x = x.to(torch.float32)
    found = torch.isinf(x)
    if not detect_negative:
        found = found & (x > 0)
    return found if detect_positive else found & (x < 0)


@op("Where", 9, widen=True)
def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition, a, b)


@op("Clip", 6)
def clip_by_attributes(x: Tensor, *, min: float | None = None, max: float | None = None) -> Tensor:  # noqa: A002 - ONNX's names
    return x if min is None and max is None else torch.clamp(x, min, max)


@op("Clip", 11, widen=True)
def clip(x: Tensor, min: Scalar | None = None, max: Scalar | None = None) -> Tensor:  # noqa: A002 - ONNX's names
    """Where min is above max both ONNX and PyTorch give max."""
    clamp: Any = torch.clamp  # takes two numbers or two tensors
    if min is None and max is None:
        return x
    if isinstance(min, Tensor) == isinstance(max, Tensor) or min is None or max is None:
        result: Tensor = clamp(x, min, max)
    else:
        result = clamp(clamp(x, min=min), max=max)
    return result
