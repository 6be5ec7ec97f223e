"""Compare the staged model with the whole one, output by output.

Differences are taken relative to the *scale* of an output, its largest magnitude: a difference that is small
beside the numbers a reader looks at is small, also where single elements are close to zero.

Left out: gradients; choosing inputs (the backend knows what its model accepts).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import VerificationError
from heterps_compile.plan.plan import Verification


def compare_outputs(
    names: Sequence[str], staged: Sequence[Any], whole: Sequence[Any], tolerance: float
) -> Verification:
    """Compare outputs in order and give the largest differences.

    Args:
        names: Of the outputs.
        staged: What the stages gave; arrays, tensors, numbers, booleans or None.
        whole: What the whole model gave.
        tolerance: Largest difference relative to an output's scale that passes. Integers must be equal.

    Raises:
        VerificationError: naming the output that differs, by how much, and what was allowed.
    """
    max_abs = max_rel = 0.0
    for name, ours, theirs in zip(names, staged, whole, strict=True):
        difference, scale = _difference(name, ours, theirs)
        relative = difference / scale if scale > 0 else difference
        if relative > tolerance:
            raise VerificationError(
                f"output {name!r} of the staged model differs from the whole model's by {difference:.3g}, "
                f"{relative:.3g} of its scale {scale:.3g}; allowed is {tolerance:g}. This is a bug or an op whose "
                f"result depends on how it is fused; --no-verify skips the check"
            )
        max_abs, max_rel = max(max_abs, difference), max(max_rel, relative)
    return Verification(max_abs, max_rel, tolerance, len(names))


def _difference(name: str, ours: Any, theirs: Any) -> tuple[float, float]:
    """Give the largest absolute difference and the scale of the whole model's output."""
    if ours is None or theirs is None:
        if ours is not theirs:
            raise VerificationError(f"output {name!r} is {ours!r} staged and {theirs!r} whole")
        return 0.0, 0.0
    a, b = _array(ours), _array(theirs)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise VerificationError(
            f"output {name!r} is {a.dtype}{list(a.shape)} staged and {b.dtype}{list(b.shape)} whole"
        )
    if a.size == 0:
        return 0.0, 0.0
    if not np.issubdtype(a.dtype, np.inexact):
        different = int(np.count_nonzero(a != b))
        if different:
            raise VerificationError(f"output {name!r} ({a.dtype}) differs in {different} of {a.size} elements")
        return 0.0, 0.0
    wide = np.complex128 if np.issubdtype(a.dtype, np.complexfloating) else np.float64
    a, b = a.astype(wide), b.astype(wide)
    odd = ~np.isfinite(a) | ~np.isfinite(b)
    unequal = odd & ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if unequal.any():
        raise VerificationError(
            f"output {name!r} is not finite in {int(unequal.sum())} of {a.size} elements of one model only"
        )
    finite_a, finite_b = a[~odd], b[~odd]
    if finite_a.size == 0:
        return 0.0, 0.0
    return float(np.abs(finite_a - finite_b).max()), float(np.abs(finite_b).max())


def _array(value: Any) -> NDArray[Any]:
    """Give a tensor, array or number as an array that can be compared; bfloat16 and float8 are widened."""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        try:
            return np.asarray(tensor.numpy())
        except TypeError:
            return np.asarray(tensor.float().numpy())
    array = np.asarray(value)
    # ml_dtypes types (bfloat16, float8) register as kind "V": numpy compares them only when widened
    return array.astype(np.float32) if array.dtype.kind == "V" and array.dtype.names is None else array
