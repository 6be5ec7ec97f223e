"""Take values that a user gives for inputs of an ONNX model: numbers, lists, arrays, files of arrays.

Not covered: how they are written on the command line (``heterps_compile/options.py``); inputs that no user gave
(:mod:`.onnx_inputs`).
"""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import one_line, printable, short
from heterps_compile.host_memory import available_bytes
from heterps_compile.units import format_bytes

from .onnx_names import quote

Array = NDArray[Any]

_SHARE_OF_FREE = 4
_NUMBERS = "biuf"


def arrays_of(given: Mapping[str, Any] | tuple[Any, ...], inputs: Sequence[ir.Value]) -> dict[str, Array]:
    """Return values as arrays of the data types of their inputs.

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


def read_values(path: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of inputs: those of a file of arrays, and further ones, which win.

    Args:
        path: An ``.npz`` file as ``numpy.savez`` writes it, of arrays without Python objects; None for none.
        values: Further values by input.

    Raises:
        InputError: where the file cannot be read, or is larger than a quarter of the free memory.
    """
    return dict(values) if path is None else {**_read_npz(path), **values}


def _read_npz(path: str) -> dict[str, Array]:
    what, fix = f"the file of inputs {printable(path)!r}", "Fix: write it with numpy.savez(FILE, NAME=array)"
    if not Path(path).is_file():
        raise InputError(f"{what} is no regular file; expected an .npz file of arrays. {fix}")
    if not is_zipfile(path):
        raise InputError(f"{what} is no .npz file. {fix}")
    try:
        with ZipFile(path) as archive:
            size_bytes, most = sum(item.file_size for item in archive.infolist()), available_bytes() // _SHARE_OF_FREE
        if size_bytes > most:
            raise InputError(f"{what} holds {format_bytes(size_bytes)}; expected at most {format_bytes(most)}")
        with np.load(path, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, BadZipFile, zlib.error, MemoryError) as e:
        raise InputError(f"{what} cannot be read: {one_line(str(e)) or type(e).__name__}. {fix}") from e
