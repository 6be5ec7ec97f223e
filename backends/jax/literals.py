"""Python source of the constants in a stage; reading it back gives the same constant, of the same type.

Left out: large arrays (they are parameters).
"""

import math
from typing import Any

import ml_dtypes
import numpy as np


def literal(value: Any) -> str:
    """Write a number, text, dtype, array or tuple of these as a Python expression in ASCII.

    Raises:
        TypeError: for what has no such expression.
    """
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, (np.ndarray, np.generic)):
        return _array(np.asarray(value))
    if isinstance(value, np.dtype):
        return _dtype(value)
    if value is None or type(value) in (bool, int):
        return repr(value)
    if type(value) is str:
        return ascii(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    raise TypeError(f"a {type(value).__name__} has no literal")


def _dtype(dtype: Any) -> str:
    if dtype.kind == "b":
        return "bool"
    is_ml = hasattr(ml_dtypes, dtype.name)
    return f"jnp.{dtype.name}" if is_ml else f"np.{dtype.name}"


def _array(array: Any) -> str:
    # jax's names of its own types are no dtypes of numpy, so those are spelled out
    dtype = f'np.dtype("{array.dtype.name}")' if hasattr(ml_dtypes, array.dtype.name) else _dtype(array.dtype)
    if array.ndim == 0 and array.dtype.kind in "iuf" and dtype.startswith("np.") and "(" not in dtype:
        return f"{dtype}({_element(array[()])})"
    if array.size == 0:
        return f"np.zeros({literal(array.shape)}, {dtype})"
    return f"np.array({_nested(array)}, {dtype})"


def _nested(array: Any) -> str:
    if array.ndim == 0:
        return _element(array[()])
    return f"[{', '.join(map(_nested, array))}]"


def _element(value: Any) -> str:
    if value.dtype == bool or np.issubdtype(value.dtype, np.integer):
        return str(value)
    if np.issubdtype(value.dtype, np.complexfloating):
        return repr(complex(value))
    text = str(value) if value.dtype.kind == "f" else str(float(value))
    return text if math.isfinite(float(value)) else f'float("{float(value)}")'
