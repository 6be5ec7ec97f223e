"""Compare the staged model with the whole one, value by value.

Differences are taken relative to the *scale* of a value, its largest magnitude: a difference that is small
beside the numbers a reader looks at is small, also where single elements are close to zero.

Left out: running either (``in_process.py``, ``gradients.py``); choosing inputs (the backend knows which it accepts).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import VerificationError
from heterps_compile.escape import printable

_LEAST_SCALE = 1e-3
"""Gradients this much smaller than the largest of the model are sums of rounded terms that cancel, not numbers of their
own: below that share, differences are taken relative to the share."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest differences between some values of the staged model and the whole one.

    Attributes:
        max_abs: Absolute.
        max_rel: Relative to the scale of the value it is of.
        values: How many were compared.
    """

    max_abs: float = 0.0
    max_rel: float = 0.0
    values: int = 0

    def joined(self, other: "Difference") -> "Difference":
        """Return the larger ones of both, over the values of both."""
        return Difference(
            max(self.max_abs, other.max_abs), max(self.max_rel, other.max_rel), self.values + other.values
        )


def compare_value(what: str, staged: Any, whole: Any, tolerance: float, *, least_scale: float = 0.0) -> Difference:
    """Compare one value.

    Args:
        what: What to call it in messages, such as ``"output 'y'"``.
        staged: What the stages gave.
        whole: What the whole model gave.
        tolerance: Largest difference relative to the value's scale that passes; infinite to measure alone, when
            precisions may differ too.
        least_scale: What the scale is taken to be at least.

    Raises:
        VerificationError: saying by how much it differs, and what was allowed.
    """
    difference, own_scale = _difference(what, staged, whole, is_measured=math.isinf(tolerance))
    scale = max(own_scale, least_scale)
    relative = difference / scale if scale > 0 else difference
    if relative > tolerance:
        raise VerificationError(
            f"{what} of the staged model differs from the whole model's by {difference:.3g}, "
            f"{relative:.3g} of its scale {scale:.3g}; allowed is {tolerance:g}"
        )
    return Difference(difference, relative, 1)


def compare_gradients(
    what: str, staged: Mapping[str, Any], whole: Mapping[str, Any], tolerance: float, scale: float
) -> Difference:
    """Compare gradients by name; one that is not there is zero.

    Args:
        what: Of what they are, such as ``"parameter"``.
        staged: What the stages gave.
        whole: What the whole model gave.
        tolerance: Largest difference relative to a gradient's scale that passes.
        scale: The largest of all gradients of the model: none is held to less than a thousandth of it.

    Raises:
        VerificationError: naming whose gradient differs, by how much, and what was allowed.
    """
    found = Difference()
    for name in dict.fromkeys((*whole, *staged)):
        ours, theirs = staged.get(name), whole.get(name)
        ours, theirs = _zeros(theirs) if ours is None else ours, _zeros(ours) if theirs is None else theirs
        about = f"the gradient of {what} {printable(name)!r}"
        found = found.joined(compare_value(about, ours, theirs, tolerance, least_scale=_LEAST_SCALE * scale))
    return found


def largest(values: Mapping[str, Any]) -> float:
    """Return the largest finite magnitude among arrays or tensors; 0 where there is none."""
    found = [np.abs(array[np.isfinite(array)]) for array in map(_array, values.values())]
    return max((float(array.max()) for array in found if array.size), default=0.0)


def is_inexact(value: Any) -> bool:
    """Say whether a tensor, array or number is of a type that rounds."""
    return bool(np.issubdtype(_array(value).dtype, np.inexact))


def are_equal(a: Any, b: Any) -> bool:
    """Say whether two arrays, tensors or numbers are the same bit by bit, NaN included."""
    if a is None or b is None:
        return a is b
    one, other = _array(a), _array(b)
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _zeros(like: Any) -> Any:
    return np.zeros_like(_array(like))


def _difference(what: str, ours: Any, theirs: Any, *, is_measured: bool) -> tuple[float, float]:
    """Return the largest absolute difference and the scale of the whole model's output."""
    if ours is None or theirs is None:
        if ours is not theirs:
            raise VerificationError(f"{what} is {ours!r} staged and {theirs!r} whole")
        return 0.0, 0.0
    a, b = _array(ours), _array(theirs)
    is_alike = a.dtype.kind == b.dtype.kind if is_measured else a.dtype == b.dtype
    if a.shape != b.shape or not is_alike:
        raise VerificationError(f"{what} is {a.dtype}{list(a.shape)} staged and {b.dtype}{list(b.shape)} whole")
    if a.size == 0:
        return 0.0, 0.0
    if not np.issubdtype(a.dtype, np.inexact):
        different = int(np.count_nonzero(a != b))
        if different:
            raise VerificationError(f"{what} ({a.dtype}) differs in {different} of {a.size} elements")
        return 0.0, 0.0
    wide = np.complex128 if np.issubdtype(a.dtype, np.complexfloating) else np.float64
    a, b = a.astype(wide), b.astype(wide)
    odd = ~np.isfinite(a) | ~np.isfinite(b)
    unequal = odd & ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if unequal.any():
        raise VerificationError(f"{what} is not finite in {int(unequal.sum())} of {a.size} elements of one model only")
    finite_a, finite_b = a[~odd], b[~odd]
    if finite_a.size == 0:
        return 0.0, 0.0
    return float(np.abs(finite_a - finite_b).max()), float(np.abs(finite_b).max())


def _array(value: Any) -> NDArray[Any]:
    """Return a tensor, array or number as an array that can be compared; bfloat16 and float8 are widened."""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        try:
            return np.asarray(tensor.numpy())
        except TypeError:
            return np.asarray(tensor.float().numpy())
    array = np.asarray(value)
    # ml_dtypes types (bfloat16, float8) register as kind "V": numpy compares them only when widened
    return array.astype(np.float32) if array.dtype.kind == "V" and array.dtype.names is None else array
