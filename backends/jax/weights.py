"""The parameters of a stage as a safetensors file.

Left out: dtypes that safetensors does not know (4-bit numbers).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable


def save_parameters(parameters: Mapping[str, Any], path: Path, index: int) -> None:
    """Save every array under its name.

    Raises:
        BackendError: naming the stage.
    """
    plain = {name: np.asarray(array, order="C") for name, array in parameters.items()}
    try:
        save_file(plain, path)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BackendError(f"the parameters of stage {index} cannot be saved: {printable(str(error))}") from error
