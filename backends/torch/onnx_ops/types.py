"""Constants, conversion between data types, and what makes tensors from nothing.

Left out: strings.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .dtypes import FLOAT4, FLOAT8, FLOAT8_SCALE, INT2, INT4, TORCH_TYPES, UINT2, UINT4, as_tensor
from .shape_arithmetic import Host, host_array
from .table import Float, Int, Ints, op

_BITS = {UINT4: 4, INT4: 4, UINT2: 2, INT2: 2}
_FLOAT8_ROUNDS_BELOW = {17: 464.0}
_FLOAT8_LARGEST = {17: 448.0, 18: 240.0, 19: 57344.0, 20: 57344.0}


@op("Constant", 1)
def constant(
    *,
    value: NDArray[Any] | None = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
) -> Tensor:
    if value is not None:
        return as_tensor(value)
    if value_float is not None or value_floats is not None:
        return torch.tensor(value_floats if value_float is None else value_float, dtype=torch.float32)
    return torch.tensor(value_ints if value_int is None else value_int, dtype=torch.int64)


def _shrink_integer(x: Tensor, number: int) -> Tensor:
    """Wrap round at 4 or 2 bits, as a conversion to a narrow integer does."""
    bits = _BITS[number]
    low: Tensor = x.to(torch.int64) & (2**bits - 1)
    if number in (INT4, INT2):
        low = torch.where(low >= 2 ** (bits - 1), low - 2**bits, low)
    return low.to(TORCH_TYPES[number])


def to_float4(x: Tensor) -> Tensor:
    """Round to the nearest of the 16 numbers of float4_e2m1, ties to the even one; what is larger saturates."""
    magnitude = x.to(torch.float32).abs().clamp(max=6.0)
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    rounded = torch.copysign(torch.round(magnitude / step) * step, x.to(torch.float32))
    # it has no NaN; ONNX's tests have -0 there
    return torch.where(torch.isnan(rounded), -0.0, rounded).to(TORCH_TYPES[FLOAT4])


def to_float8(x: Tensor, number: int, saturate: bool) -> Tensor:
    wide = x.to(torch.float32)
    largest = _FLOAT8_LARGEST[number]
    if saturate:
        return torch.where(torch.isnan(wide), wide, wide.clamp(-largest, largest)).to(TORCH_TYPES[number])
    # what would round beyond the largest number is no number in the formats without infinity
    limit = _FLOAT8_ROUNDS_BELOW.get(number)
    wide = wide if limit is None else torch.where(wide.abs() > limit, torch.nan, wide)
    return wide.to(TORCH_TYPES[number])


def _to_scale(x: Tensor, round_mode: str, saturate: bool) -> Tensor:
    """Convert to a power of two: float8_e8m0, which has neither sign nor zero."""
    mantissa, exponent = torch.frexp(x.to(torch.float32).abs())
    power = exponent - 1  # x = 2 * mantissa * 2 ** power, 1 <= 2 * mantissa < 2
    if round_mode == "up":
        power = torch.where(mantissa > 0.5, power + 1, power)
    elif round_mode == "nearest":
        power = torch.where(mantissa >= 0.75, power + 1, power)
    power = torch.where(x == 0, -127, power)
    bits = (power + 127).clamp(0, 254 if saturate else 255)
    bits = torch.where(torch.isinf(x), 254 if saturate else 255, bits)
    return torch.where(torch.isnan(x), 255, bits).to(torch.uint8).view(torch.float8_e8m0fnu)


def convert(x: Tensor, number: int, *, saturate: bool = True, round_mode: str = "up") -> Tensor:
    """Return a tensor in an ONNX data type."""
    if x.dtype.itemsize == 1 and x.dtype.is_floating_point:
        x = x.to(torch.float32)
    if number in _BITS:
        return _shrink_integer(x, number)
    if number == FLOAT4:
        return to_float4(x)
    if number in FLOAT8:
        return to_float8(x, number, saturate)
    if number == FLOAT8_SCALE:
        return _to_scale(x, round_mode, saturate)
    return x.to(TORCH_TYPES[number])


@op("Cast", 6)
def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return convert(x, to, saturate=bool(saturate), round_mode=round_mode)


@op("CastLike", 15)
def cast_like(x: Tensor, like: Tensor, *, types: list[int], saturate: int = 1, round_mode: str = "up") -> Tensor:
    if types[1]:
        return convert(x, types[1], saturate=bool(saturate), round_mode=round_mode)
    return x.to(like.dtype)


@op("BitCast", 26)
def bit_cast(x: Tensor, *, to: int) -> Tensor:
    return x.contiguous().view(TORCH_TYPES[to])


@op("Shape", 1)
def shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Host:
    return host_array(list(x.shape)[start:end])


@op("Size", 1)
def size(x: Tensor) -> Host:
    return host_array([x.numel()]).reshape(())


@op("ConstantOfShape", 9)
def constant_of_shape(shape: Ints, *, value: NDArray[Any] | None = None) -> Tensor:
    fill = np.zeros(1, np.float32) if value is None else value.reshape(-1)
    one = as_tensor(fill)
    if one.dtype.itemsize > 1 or not one.dtype.is_floating_point:
        return torch.full(shape, one.item(), dtype=one.dtype)
    return one.expand(shape).clone()


@op("Range", 11)
def range_(start: Float, limit: Float, delta: Float, *, types: list[int]) -> Tensor:
    dtype = TORCH_TYPES[types[0] or 7]
    if dtype in (torch.float16, torch.bfloat16):
        return torch.arange(start, limit, delta, dtype=torch.float32).to(dtype)
    return torch.arange(start, limit, delta, dtype=dtype)


@op("EyeLike", 9)
def eye_like(x: Tensor, *, dtype: int | None = None, k: int) -> Tensor:
    rows = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    columns = torch.arange(x.shape[1], device=x.device)
    return (columns - rows == k).to(x.dtype if dtype is None else TORCH_TYPES[dtype])


@op("RandomUniform", 1)
def random_uniform(*, shape: list[int], high: float, low: float, dtype: int, seed: float | None = None) -> Tensor:
    return torch.rand(shape, dtype=TORCH_TYPES[dtype], generator=_generator(seed)) * (high - low) + low


@op("RandomUniformLike", 1)
def random_uniform_like(
    x: Tensor, *, high: float, low: float, dtype: int | None = None, seed: float | None = None
) -> Tensor:
    wanted = x.dtype if dtype is None else TORCH_TYPES[dtype]
    if seed is None:
        return torch.rand_like(x, dtype=wanted) * (high - low) + low
    return torch.rand(x.shape, dtype=wanted, device=x.device, generator=_generator(seed)) * (high - low) + low


@op("RandomNormal", 1)
def random_normal(*, shape: list[int], mean: float, scale: float, dtype: int, seed: float | None = None) -> Tensor:
    return torch.randn(shape, dtype=TORCH_TYPES[dtype], generator=_generator(seed)) * scale + mean


@op("RandomNormalLike", 1)
def random_normal_like(
    x: Tensor, *, mean: float, scale: float, dtype: int | None = None, seed: float | None = None
) -> Tensor:
    wanted = x.dtype if dtype is None else TORCH_TYPES[dtype]
    if seed is None:
        return torch.randn_like(x, dtype=wanted) * scale + mean
    return torch.randn(x.shape, dtype=wanted, device=x.device, generator=_generator(seed)) * scale + mean


@op("Bernoulli", 15)
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    drawn = torch.bernoulli(x, generator=_generator(seed))
    return drawn if dtype is None else drawn.to(TORCH_TYPES[dtype])


@op("Multinomial", 7)
def multinomial(x: Tensor, *, dtype: int, sample_size: int, seed: float | None = None) -> Tensor:
    """Draw classes by unnormalised log probabilities."""
    drawn = torch.multinomial(torch.softmax(x, -1), sample_size, replacement=True, generator=_generator(seed))
    return drawn.to(TORCH_TYPES[dtype])


def _generator(seed: float | None) -> torch.Generator | None:
    return None if seed is None else torch.Generator().manual_seed(int(seed))


@op("Trilu", 14)
def trilu(x: Tensor, k: Int | None = None, *, upper: int) -> Tensor:
    return torch.triu(x, k or 0) if upper else torch.tril(x, k or 0)
