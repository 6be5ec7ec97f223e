"""Ops that work on elements one by one, with numpy's broadcasting.

Left out: ops that are one function of ``jax.numpy`` or one operator of Python; the table names those directly.
"""

import functools
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from .known import Array, as_dtype, is_whole, known, xp


def identity(x: Array) -> Array:
    """Return x."""
    return x


def absolute(x: Array) -> Array:
    """Return magnitudes."""
    return xp(x).abs(x)


def floor(x: Array) -> Array:
    """Round down."""
    return xp(x).floor(x)


def ceil(x: Array) -> Array:
    """Round up."""
    return xp(x).ceil(x)


def round_half_even(x: Array) -> Array:
    """Round to the nearest whole number, halves to the even one."""
    return xp(x).round(x)


def sqrt(x: Array) -> Array:
    """Return square roots."""
    return xp(x).sqrt(x)


def reciprocal(x: Array) -> Array:
    """Return 1 / x."""
    return 1 / x


def logical_not(x: Array) -> Array:
    """Negate booleans."""
    return xp(x).logical_not(x)


def divide(a: Array, b: Array) -> Array:
    """Divide; whole numbers towards zero."""
    a, b = xp(a, b).asarray(a), xp(a, b).asarray(b)
    if not is_whole(a):
        return a / b
    if known(a, b):
        quotient = np.floor_divide(a, b)
        return quotient + ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)
    dtype = jnp.promote_types(as_dtype(a.dtype), as_dtype(b.dtype))
    return lax.div(*jnp.broadcast_arrays(jnp.asarray(a, dtype), jnp.asarray(b, dtype)))


def power(x: Array, exponent: Array) -> Array:
    """Raise x to a power, in the dtype of x."""
    dtype = x.dtype
    return xp(x, exponent).power(x, exponent).astype(dtype)


def remainder(a: Array, b: Array, *, fmod: int = 0) -> Array:
    """Return the remainder: with the sign of b, or with fmod that of a."""
    return xp(a, b).fmod(a, b) if fmod else xp(a, b).mod(a, b)


def maximum(*values: Array) -> Array:
    """Return the largest of values."""
    return functools.reduce(xp(*values).maximum, values)


def minimum(*values: Array) -> Array:
    """Return the smallest of values."""
    return functools.reduce(xp(*values).minimum, values)


def total(*values: Array) -> Array:
    """Add values up."""
    return functools.reduce(lambda a, b: a + b, values)


def mean_of(*values: Array) -> Array:
    """Return the mean of values."""
    return total(*values) / len(values)


def where(condition: Array, a: Array, b: Array) -> Array:
    """Choose a where the condition holds, else b."""
    return xp(condition, a, b).where(condition, a, b)


def shift_bits(x: Array, count: Array, *, direction: str) -> Array:
    """Shift bits LEFT or RIGHT; by their number or more gives what is left then."""
    bits = jnp.iinfo(x.dtype).bits
    shifted = jnp.left_shift(x, count) if direction == "LEFT" else jnp.right_shift(x, count)
    emptied = jnp.zeros_like(shifted) if direction == "LEFT" else jnp.where(x < 0, -1, 0).astype(x.dtype)
    return jnp.where(count >= bits, emptied, shifted)


def is_infinite(x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Say where x is infinite, of the signs asked for."""
    return (jnp.isposinf(x) if detect_positive else False) | (
        jnp.isneginf(x) if detect_negative else jnp.isinf(x) & False
    )


def clip(x: Array, min: Array | None = None, max: Array | None = None) -> Array:  # noqa: A002 - ONNX's names
    """Limit x from below and above."""
    if min is not None:
        x = xp(x, min).maximum(x, xp(min).asarray(min).astype(x.dtype))
    if max is not None:
        x = xp(x, max).minimum(x, xp(max).asarray(max).astype(x.dtype))
    return x


def cast(x: Array, *, to: Any, saturate: int = 1, round_mode: str = "up") -> Array:
    """Change the dtype; floats beyond the range of an 8-bit float saturate or become its infinity or nan."""
    x = xp(x).asarray(x)
    if np.dtype(to).name.startswith(("float8", "float4")):
        return _to_small_float(jnp.asarray(x), to, saturate=bool(saturate), round_mode=round_mode)
    if known(x):
        return x.astype(to)
    if is_whole(x) or not jnp.issubdtype(to, jnp.integer):
        return x.astype(as_dtype(to))
    if jnp.iinfo(to).bits < 32:  # jax saturates where numpy and C take the lowest bits
        x = x.astype(jnp.int32)
    return x.astype(as_dtype(to))


def cast_like(x: Array, like: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
    """Change the dtype to another array's."""
    return cast(x, to=like.dtype, saturate=saturate, round_mode=round_mode)


def _to_small_float(x: Array, to: Any, *, saturate: bool, round_mode: str) -> Array:
    if np.dtype(to).name == "float8_e8m0fnu":
        return _to_power_of_two(x.astype(jnp.float32), to, saturate=saturate, round_mode=round_mode)
    largest = jnp.finfo(to).max.astype(jnp.float32)
    full = x.astype(jnp.float32)
    rounded = full.astype(to)
    if np.dtype(to).name.startswith("float4"):
        return jnp.clip(full, -largest, largest).astype(to)
    if saturate:
        limited = jnp.clip(full, -largest, largest).astype(to)
        return jnp.where(jnp.isnan(full), rounded, limited)
    return rounded


def _to_power_of_two(x: Array, to: Any, *, saturate: bool, round_mode: str) -> Array:
    """Round to a power of two by the bits of a float32: float8_e8m0fnu is its exponent alone."""
    bits = lax.bitcast_convert_type(jnp.abs(x), jnp.uint32)
    exponent, fraction = bits >> 23, bits & 0x7FFFFF
    grows = {"up": fraction > 0, "down": fraction < 0, "nearest": fraction >= 0x400000}[round_mode]
    rounded = exponent + grows.astype(jnp.uint32)
    limit = jnp.where(rounded > 254, jnp.uint32(254 if saturate else 255), rounded)
    return lax.bitcast_convert_type(jnp.where(exponent == 255, 255, limit).astype(jnp.uint8), jnp.dtype(to))


def bit_cast(x: Array, *, to: Any) -> Array:
    """Read the same bits as another dtype."""
    if x.dtype == bool:
        x = x.astype(jnp.uint8)
    if np.dtype(to) == bool:
        return lax.bitcast_convert_type(x, jnp.uint8).astype(bool)
    return lax.bitcast_convert_type(x, as_dtype(to))


def leaky_relu(x: Array, *, alpha: float = 0.01) -> Array:
    """Scale what is negative by alpha."""
    return jnp.where(x < 0, alpha * x, x)


def parametric_relu(x: Array, slope: Array) -> Array:
    """Scale what is negative by a slope that is broadcast."""
    return jnp.where(x < 0, slope * x, x)


def elu(x: Array, *, alpha: float = 1.0) -> Array:
    """Return alpha (e^x - 1) below zero, x above."""
    return jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0)))


def selu(x: Array, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Array:
    """Return gamma times elu."""
    return gamma * elu(x, alpha=alpha)


def celu(x: Array, *, alpha: float = 1.0) -> Array:
    """Return elu that is smooth for every alpha."""
    return jnp.maximum(x, 0) + jnp.minimum(0, alpha * jnp.expm1(x / alpha))


def gelu(x: Array, *, approximate: str = "none") -> Array:
    """Return x times the normal distribution function of x."""
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def hard_sigmoid(x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    """Return alpha x + beta, limited to 0 and 1."""
    return jnp.clip(alpha * x + beta, 0, 1)


def hard_swish(x: Array) -> Array:
    """Return x times its hard sigmoid."""
    return x * hard_sigmoid(x, alpha=1 / 6, beta=0.5)


def swish(x: Array, *, alpha: float = 1.0) -> Array:
    """Return x sigmoid(alpha x)."""
    return x * jax.nn.sigmoid(alpha * x)


def swiglu(a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    """Return swish(a) b."""
    return swish(a, alpha=alpha) * b


def mish(x: Array) -> Array:
    """Return x tanh(softplus(x))."""
    return x * jnp.tanh(jax.nn.softplus(x))


def softsign(x: Array) -> Array:
    """Return x / (1 + |x|)."""
    return x / (1 + jnp.abs(x))


def shrink(x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    """Move x towards zero by a bias where it is beyond lambd, else give zero."""
    moved = jnp.where(x < -lambd, x + bias, jnp.where(x > lambd, x - bias, 0))
    return moved.astype(x.dtype)


def thresholded_relu(x: Array, *, alpha: float = 1.0) -> Array:
    """Return x where it exceeds alpha, else zero."""
    return jnp.where(x > alpha, x, 0)


def below_largest(x: Array, axis: int) -> Array:
    """Return x less its largest element along an axis.

    A compiler may compute x once for the largest and once more for the difference, rounded otherwise: what rounding
    alone puts above zero is zero.
    """
    shifted = x - lax.stop_gradient(jnp.max(x, axis=axis, keepdims=True))
    return jnp.where(shifted > 0, 0, shifted)


def softmax(x: Array, *, axis: int = -1) -> Array:
    """Return the softmax along an axis."""
    powers = jnp.exp(below_largest(x, axis))
    return powers / jnp.sum(powers, axis=axis, keepdims=True)


def log_softmax(x: Array, *, axis: int = -1) -> Array:
    """Return the logarithm of the softmax along an axis."""
    shifted = below_largest(x, axis)
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=axis, keepdims=True))


def hardmax(x: Array, *, axis: int = -1) -> Array:
    """Return one where the first largest element along an axis is, else zero."""
    return jax.nn.one_hot(jnp.argmax(x, axis), x.shape[axis], axis=axis, dtype=x.dtype)


def as_matrix(x: Array, axis: int) -> Array:
    """Return x with the dimensions before the axis made one, and those from it on."""
    axis = axis % x.ndim if x.ndim else 0
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


def softmax_of_matrix(x: Array, *, axis: int = 1) -> Array:
    """Return the softmax over all dimensions from the axis on."""
    return softmax(as_matrix(x, axis)).reshape(x.shape)


def log_softmax_of_matrix(x: Array, *, axis: int = 1) -> Array:
    """Return the logarithm of the softmax over all dimensions from the axis on."""
    return log_softmax(as_matrix(x, axis)).reshape(x.shape)


def hardmax_of_matrix(x: Array, *, axis: int = 1) -> Array:
    """Return one where the first largest element over the dimensions from the axis on is, else zero."""
    return hardmax(as_matrix(x, axis)).reshape(x.shape)


def binarize(x: Array, *, threshold: float = 0.0) -> Array:
    """Return 1 above the threshold, else 0."""
    return (x > threshold).astype(x.dtype)


def drop(x: Array, *, ratio: float, draw: int, key: Any = None) -> Array:
    """Set elements to zero at random and scale the others; draws with different numbers are independent."""
    if key is None:
        return x
    # float32, so that masks are the same with 64 bits enabled
    kept = jax.random.bernoulli(jax.random.fold_in(key, draw), jnp.float32(1 - ratio), x.shape)
    return x * (kept / (1 - ratio if ratio < 1 else 1)).astype(x.dtype)


def dropout(
    x: Array, ratio: Array | None = None, training_mode: Array | None = None, *, seed: int = 0, outputs: int = 1
) -> Any:
    """Return x, and with it a mask that keeps everything: there is no dropout in inference."""
    del seed
    drops = (
        training_mode is not None
        and bool(np.asarray(training_mode))
        and (ratio is None or float(np.asarray(ratio)) > 0)
    )
    if drops:
        raise ValueError("dropout in training mode needs random numbers, which a pure function does not have")
    return x if outputs == 1 else (x, jnp.ones(x.shape, bool))
