"""Values of one backend as another takes them, sharing memory where both can.

Left out: devices other than the CPU's memory (a stage moves what it takes to where it runs).
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import BackendError

if TYPE_CHECKING:
    from torch import Tensor


def as_array(value: Any, name: str) -> NDArray[Any]:
    """Return an array, tensor, JAX array or number as a numpy array.

    Args:
        value: The value.
        name: What to call it in messages.

    Raises:
        BackendError: naming the value, where numpy has no such data type.
    """
    if not hasattr(value, "detach"):
        return np.asarray(value)
    tensor = value.detach().cpu()  # a tensor, told without importing torch
    try:
        return np.asarray(tensor.numpy())
    except (TypeError, RuntimeError) as error:
        raise BackendError(
            f"value {name!r} is {tensor.dtype}, which numpy has no arrays of; cut the model where values have another "
            f"data type (--pin), or take the backend torch"
        ) from error


def as_tensor(value: Any, name: str) -> "Tensor":
    """Return a tensor, array, JAX array or number as a tensor.

    Args:
        value: The value.
        name: What to call it in messages.

    Raises:
        BackendError: naming the value, where PyTorch has no such data type.
    """
    import torch  # noqa: PLC0415 - torch only where torch stages are

    if isinstance(value, torch.Tensor):
        return value
    array = np.asarray(value)
    try:
        # PyTorch warns of memory that must not be written to (JAX's), so that is copied
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except TypeError as error:
        raise BackendError(f"value {name!r} is {array.dtype}, which PyTorch has no tensors of") from error
