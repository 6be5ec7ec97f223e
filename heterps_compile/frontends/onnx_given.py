"""Take values that a user gives for inputs of an ONNX model: numbers, lists, arrays.

Not covered: where they are read from (:mod:`.input_files`); inputs that no user gave (:mod:`.onnx_inputs`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import one_line, short

from .onnx_names import quote

Array = NDArray[Any]

_NUMBERS = "biuf"


def arrays_of(given: Mapping[str, Any] | tuple[Any, ...], inputs: Sequence[ir.Value]) -> dict[str, Array]:
    """Make values as arrays of the data types of their inputs.

    Args:
        given: Numbers, lists or arrays by input. A number fills an input of any shape.
        inputs: Of the model.

    Raises:
        UnknownNameError: where the model has no such input.
        InputError: where a value is no array, or does not fit data type or rank of its input.
    """
    if not isinstance(given, Mapping):
        if not given:
            return {}
        raise InputError(
            f"example_inputs of an ONNX model is a {type(given).__name__}; expected a mapping from names of inputs to "
            f"values, such as {{{(inputs[0].name if inputs else 'x')!r}: array}}"
        )
    known = {value.name or "": value for value in inputs}
    found = {}
    for name, value in given.items():
        if name not in known:
            raise UnknownNameError("input", str(name), known)
        found[name] = _array_of(value, known[name])
    return found


def _array_of(value: Any, wanted: ir.Value) -> Array:
    name = quote(wanted.name)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as e:
        raise InputError(
            f"the value of input {name} is no array: {one_line(str(e))}. Fix: give rows of one length"
        ) from e
    assert wanted.dtype is not None  # noqa: S101 - the caller has refused what is no tensor
    is_text = wanted.dtype is ir.DataType.STRING
    if is_text:
        array = array.astype(str).astype(object)
    elif array.dtype.kind not in _NUMBERS and array.dtype != wanted.dtype.numpy():
        raise InputError(f"the value of input {name} is of {array.dtype}; expected {wanted.dtype.numpy().name}")
    else:
        with np.errstate(all="ignore"):
            cast = array.astype(wanted.dtype.numpy())
        is_whole = cast.dtype.kind in "biu"
        if is_whole and not np.array_equal(cast, array):
            raise InputError(
                f"the value of input {name} is {short(array.tolist())}; expected numbers of {cast.dtype.name}"
            )
        array = cast
    rank = 0 if wanted.shape is None else len(wanted.shape)
    if array.ndim not in (0, rank):
        raise InputError(
            f"the value of input {name} has {array.ndim} dimensions; expected {rank}, or one number for all elements"
        )
    return array
