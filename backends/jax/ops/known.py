"""Values that are known before a stage runs, so that shapes computed from them stay numbers under ``jax.jit``.

A known value is a number or a numpy array: a constant of the model, the shape of an input. What is computed from
known values by the functions that use :func:`xp` is known too.

Left out: values that depend on inputs; :func:`ints` refuses them.
"""

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

Array = Any
"""A jax array, or a numpy array or number where the value is known."""


def known(*values: Array) -> bool:
    """Say whether values are known before the stage runs."""
    return not any(isinstance(value, jax.Array) for value in values)


def xp(*values: Array) -> Any:
    """Return numpy for known values, else jax.numpy."""
    return np if known(*values) else jnp


def ints(values: Array) -> tuple[int, ...]:
    """Return whole numbers that must be known, as a shape or axes must."""
    return tuple(int(value) for value in np.asarray(values).reshape(-1))


def as_dtype(to: Any) -> Any:
    """Return a dtype as jax has it at the moment: 64 bits only where they are enabled."""
    return jax.dtypes.canonicalize_dtype(to)


def is_whole(x: Array) -> bool:
    """Say whether an array has whole numbers or booleans."""
    return bool(jnp.issubdtype(x.dtype, jnp.integer)) or x.dtype == bool


def wide(x: Array) -> Array:
    """Return half precisions as float32, to compute in; others as they are."""
    return x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x
