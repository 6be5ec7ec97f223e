"""ONNX's data types in PyTorch, and arrays as tensors and back.

Types below one byte have no tensors that compute: they are carried in the next wider type, as the numbers they are.

Left out: strings.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TORCH_TYPES: Mapping[int, torch.dtype] = MappingProxyType(
    {
        1: torch.float32, 2: torch.uint8, 3: torch.int8, 4: torch.uint16, 5: torch.int16, 6: torch.int32,
        7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64, 12: torch.uint32, 13: torch.uint64,
        14: torch.complex64, 15: torch.complex128, 16: torch.bfloat16, 17: torch.float8_e4m3fn,
        18: torch.float8_e4m3fnuz, 19: torch.float8_e5m2, 20: torch.float8_e5m2fnuz, 21: torch.uint8, 22: torch.int8,
        23: torch.float16, 24: torch.float8_e8m0fnu, 25: torch.uint8, 26: torch.int8,
    }
)  # fmt: skip
"""The dtype that carries each of ONNX's data types, by its number."""

UINT4, INT4, FLOAT4, UINT2, INT2 = 21, 22, 23, 25, 26
FLOAT8 = range(17, 21)
FLOAT8_SCALE = 24

_BITS_AS = {1: np.uint8, 2: np.uint16}
_CARRIED = {"int4": np.int8, "uint4": np.uint8, "int2": np.int8, "uint2": np.uint8, "float4_e2m1fn": np.float16}
_CARRIERS = {
    "int4": torch.int8,
    "uint4": torch.uint8,
    "int2": torch.int8,
    "uint2": torch.uint8,
    "float4_e2m1fn": torch.float16,
}
_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in TORCH_TYPES.values()}


def torch_type(name: str) -> torch.dtype:
    """Return the dtype that carries a data type of the graph, by its name there: ``"float32"``, ``"int4"``.

    Raises:
        TypeError: for strings.
    """
    found = _CARRIERS.get(name) or _BY_NAME.get(name)
    if found is None:
        raise TypeError(f"{name} is no type of a tensor")
    return found


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return an array as a tensor; memory is shared where numpy allows writing to it.

    Raises:
        TypeError: for strings and objects.
    """
    name = array.dtype.name
    if name in _CARRIED:
        array = array.astype(_CARRIED[name])
    elif name not in _BY_NAME:
        raise TypeError(f"{name} is no type of a tensor")
    elif name.startswith(("bfloat", "float8")):  # numpy's only through ml_dtypes: hand their bits over
        return torch.from_numpy(np.array(array).view(_BITS_AS[array.dtype.itemsize])).view(_BY_NAME[name])
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")  # np.ascontiguousarray would give a scalar a dimension
    return torch.from_numpy(array)


def as_array(tensor: Tensor, number: int) -> NDArray[Any]:
    """Return a tensor as the array of an ONNX data type."""
    import onnx  # noqa: PLC0415 - only where arrays are wanted; a stage has no need of it

    dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
    tensor = tensor.detach().cpu().contiguous()
    if dtype.name in _CARRIED:
        return tensor.numpy().astype(dtype)
    if dtype.isbuiltin != 1:
        bits = torch.uint8 if tensor.itemsize == 1 else torch.uint16
        return np.asarray(tensor.view(bits).numpy().view(dtype))
    return np.asarray(tensor.numpy())
