"""Read a written stage back: its source as a module of its own, its weights from safetensors.

Reading runs the source, as importing any Python file does: the caller has checked the file's hash before.

Left out: that check.
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from heterps_compile.backends.read_source import import_source
from heterps_compile.errors import BackendError
from heterps_compile.escape import printable


def read_stage(source: Path, weights: Path, index: int) -> nn.Module:
    """Read one stage.

    Raises:
        BackendError: naming stage and file.
    """
    module = import_source(source, index)
    load: Any = getattr(module, "load", None)
    if not callable(load):
        raise BackendError(f"stage {index}: {str(source)!r} has no load(); compile the model again")
    try:
        stage = load(weights)
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise BackendError(
            f"stage {index}: the weights in {str(weights)!r} do not fit {source.name}: {printable(str(error))}; "
            f"compile the model again"
        ) from error
    if not isinstance(stage, nn.Module):
        raise BackendError(f"stage {index}: load() in {str(source)!r} gives a {type(stage).__name__}, no nn.Module")
    return stage
